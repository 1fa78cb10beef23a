// llama.cpp as a side of `python -m tools.peers`: forwards of windows after a prefix.
//
// llama_side run MODEL.gguf THREADS ARCHITECTURE     replies to the lines of tools/peers/side_process.py, one line each
// llama_side quantize q4_0|q6_k|q8_0 COLUMNS         converts float32 rows on standard input to quantized rows on output
//
// ARCHITECTURE overrides the file's. With qwen2 branches are sequences. The prefix is computed once in sequence 0 and
// copied to the others. A forward is one batch of all windows with bidirectional attention and the logits of every row.
// Its rows are removed before the next forward.
//
// With dream there is no cache. As in llama.cpp's program llama-diffusion-cli, a forward is one sequence of the prefix
// and one window, with the logits of every row.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ggml.h"
#include "llama.h"

namespace {

template <auto Free> struct Freed {
    template <typename T> void operator()(T * held) const { Free(held); }
};
using Model = std::unique_ptr<llama_model, Freed<llama_model_free>>;
using Context = std::unique_ptr<llama_context, Freed<llama_free>>;

void require(bool holds, const std::string & what) {
    if (!holds) {
        throw std::runtime_error(what);
    }
}

// Owner of a llama_batch with space for `capacity` tokens of one sequence each.
class Batch {
  public:
    explicit Batch(int32_t capacity) : batch_(llama_batch_init(capacity, 0, 1)) {}
    ~Batch() { llama_batch_free(batch_); }
    Batch(Batch && other) noexcept : batch_(std::exchange(other.batch_, {})) {}
    Batch & operator=(Batch &&) = delete;

    void add(llama_token token, llama_pos position, llama_seq_id sequence, bool with_logits) {
        const int32_t at = batch_.n_tokens++;
        batch_.token[at] = token;
        batch_.pos[at] = position;
        batch_.n_seq_id[at] = 1;
        batch_.seq_id[at][0] = sequence;
        batch_.logits[at] = with_logits;
    }
    const llama_batch & get() const { return batch_; }

  private:
    llama_batch batch_;
};

std::vector<int32_t> tokens_of_file(const std::string & path, size_t count) {
    std::vector<int32_t> tokens(count);
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char *>(tokens.data()), static_cast<std::streamsize>(count * sizeof(int32_t)));
    require(file.good(), path + " has fewer tokens than expected");
    return tokens;
}

// One context, with a prefix and the windows after it.
class Side {
  public:
    Side(llama_model * model, int threads, int prefix, int branches, int window)
        : branches_(branches), vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model))) {
        llama_context_params settings = llama_context_default_params();
        // Bidirectional attention needs one batch. Without a cache it contains the prefix too.
        settings.n_batch = settings.n_ubatch = std::max(prefix + window, branches * window);
        settings.n_seq_max = branches;
        settings.n_ctx = branches * (prefix + window);
        settings.n_threads = settings.n_threads_batch = threads;
        context_.reset(llama_init_from_model(model, settings));
        require(context_ != nullptr, "llama.cpp could not create a context");
        llama_set_causal_attn(context_.get(), false);
    }

    // Runs a forward of `count` tokens from nothing and returns its seconds.
    double first(int count, const std::string & file) {
        forget();
        return decode(batch_of_prefix(tokens_of_file(file, count)));
    }

    // Computes the prefix of the following windows and returns its seconds, or a negative number without a cache.
    double prefix(int count, const std::string & file) {
        prefix_ = count;
        if (!memory()) {
            return -1;
        }
        forget();
        const double seconds = decode(batch_of_prefix(tokens_of_file(file, count)));
        for (int branch = 1; branch < branches_; ++branch) {
            llama_memory_seq_cp(memory(), 0, branch, -1, -1);
        }
        return seconds;
    }

    void windows(int branches, int window, const std::string & file) {
        const int rows = branches * window;
        const std::vector<int32_t> tokens = tokens_of_file(file, static_cast<size_t>(prefix_ + rows));
        require(memory() || branches == 1, "without a cache there is one sequence");
        skipped_ = memory() ? 0 : prefix_;
        rows_ = skipped_ + rows;
        batch_ = std::make_unique<Batch>(rows_);
        for (int i = 0; i < skipped_; ++i) {
            batch_->add(tokens[i], i, 0, true);
        }
        for (int i = 0; i < rows; ++i) {
            batch_->add(tokens[prefix_ + i], prefix_ + i % window, i / window, true);
        }
    }

    // Runs one forward and returns its seconds. The logits are valid until the next one.
    double run() {
        require(batch_ != nullptr, "run before windows");
        for (int branch = 0; memory() && branch < branches_; ++branch) {
            require(llama_memory_seq_rm(memory(), branch, prefix_, -1), "llama.cpp kept rows of the window");
        }
        return decode(*batch_);
    }

    // Writes float32 [branches, window, vocabulary].
    void write_logits(const std::string & path) {
        std::ofstream file(path, std::ios::binary);
        for (int i = skipped_; i < rows_; ++i) {
            const float * row = llama_get_logits_ith(context_.get(), i);
            require(row != nullptr, "llama.cpp has no logits of row " + std::to_string(i));
            file.write(reinterpret_cast<const char *>(row), static_cast<std::streamsize>(vocabulary_ * sizeof(float)));
        }
        file.close();
        require(file.good(), "cannot write " + path);
    }

  private:
    // Returns null for an architecture without a cache.
    llama_memory_t memory() { return llama_get_memory(context_.get()); }

    void forget() {
        if (memory()) {
            llama_memory_clear(memory(), true);
        }
    }

    Batch batch_of_prefix(const std::vector<int32_t> & tokens) {
        Batch batch(static_cast<int32_t>(tokens.size()));
        for (size_t i = 0; i < tokens.size(); ++i) {
            batch.add(tokens[i], static_cast<llama_pos>(i), 0, !memory());
        }
        return batch;
    }

    double decode(const Batch & batch) {
        const auto began = std::chrono::steady_clock::now();
        const int32_t status = llama_decode(context_.get(), batch.get());
        require(status == 0, "llama_decode returned " + std::to_string(status));
        llama_synchronize(context_.get());
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    }

    int branches_, vocabulary_;
    int prefix_ = 0, skipped_ = 0, rows_ = 0; // rows_ includes the skipped ones
    std::unique_ptr<Batch> batch_;
    Context context_;
};

void quantize(const std::string & name, int64_t columns) {
    require(name == "q4_0" || name == "q6_k" || name == "q8_0", "received type " + name + ", expected q4_0, q6_k or q8_0");
    const ggml_type type = name == "q4_0" ? GGML_TYPE_Q4_0 : name == "q6_k" ? GGML_TYPE_Q6_K : GGML_TYPE_Q8_0;
    require(columns > 0 && columns % ggml_blck_size(type) == 0, "the columns are not whole blocks of " + name);
    const int64_t rows = std::max<int64_t>(1, (1 << 20) / columns); // 4 MiB of floats at a time
    std::vector<float> floats(rows * columns);
    std::vector<char> quantized(rows * ggml_row_size(type, columns));
    for (size_t count; (count = std::fread(floats.data(), sizeof(float), floats.size(), stdin)) > 0;) {
        require(count % columns == 0, "standard input ended within a row");
        const size_t size = ggml_quantize_chunk(type, floats.data(), quantized.data(), 0, count / columns, columns, nullptr);
        require(std::fwrite(quantized.data(), 1, size, stdout) == size, "cannot write quantized rows");
    }
    require(std::fflush(stdout) == 0, "cannot write quantized rows");
}

Model opened_model(const std::string & path, const std::string & architecture) {
    llama_model_kv_override overrides[2] = {};
    overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_STR;
    std::strncpy(overrides[0].key, "general.architecture", sizeof overrides[0].key - 1);
    std::strncpy(overrides[0].val_str, architecture.c_str(), sizeof overrides[0].val_str - 1);
    llama_model_params settings = llama_model_default_params();
    settings.kv_overrides = overrides;
    Model model(llama_model_load_from_file(path.c_str(), settings));
    require(model != nullptr, "llama.cpp cannot read " + path);
    return model;
}

void answer_lines(const std::string & path, int threads, const std::string & architecture) {
    const Model model = opened_model(path, architecture);
    std::cout << "open" << std::endl;
    std::unique_ptr<Side> side;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string what, file;
        int prefix = 0, branches = 0, window = 0;
        words >> what;
        if (what == "reserve") {
            words >> prefix >> branches >> window;
            side.reset(); // frees the memory before the next allocation
            side = std::make_unique<Side>(model.get(), threads, prefix, branches, window);
            std::cout << "reserved" << std::endl;
        } else if ((what == "first" || what == "prefix") && side) {
            words >> prefix >> std::ws;
            std::getline(words, file);
            const double seconds = what == "first" ? side->first(prefix, file) : side->prefix(prefix, file);
            std::cout << (seconds < 0 ? "none" : std::to_string(seconds)) << std::endl;
        } else if (what == "windows" && side) {
            words >> branches >> window >> std::ws;
            std::getline(words, file);
            side->windows(branches, window, file);
            std::cout << "ready" << std::endl;
        } else if (what == "run" && side) {
            std::cout << side->run() << std::endl;
        } else if (what == "answer" && side) {
            std::getline(words >> std::ws, file);
            side->write_logits(file);
            std::cout << "logits" << std::endl;
        } else {
            throw std::runtime_error("received \"" + line + "\", expected reserve, prefix, windows, run or answer");
        }
    }
}

} // namespace

int main(int count, char ** words) {
    try {
        llama_log_set([](ggml_log_level level, const char * text, void *) {
            if (level >= GGML_LOG_LEVEL_WARN) { std::fputs(text, stderr); }
        }, nullptr);
        std::cout.precision(9);
        if (count == 5 && std::string(words[1]) == "run") {
            answer_lines(words[2], std::stoi(words[3]), words[4]);
        } else if (count == 4 && std::string(words[1]) == "quantize") {
            quantize(words[2], std::stoll(words[3]));
        } else {
            throw std::runtime_error("expected: run MODEL THREADS ARCHITECTURE, or quantize TYPE COLUMNS");
        }
    } catch (const std::exception & error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    return 0;
}
