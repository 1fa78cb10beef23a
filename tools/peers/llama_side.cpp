// llama.cpp as a side of `python -m tools.peers`: forwards of windows after a cached prefix.
//
// llama_side run MODEL.gguf THREADS      replies to the lines of tools/peers/side_process.py, one line each
// llama_side quantize IN.gguf OUT.gguf q4_0|q8_0 THREADS
//
// Branches are sequences. The prefix is computed once in sequence 0 and copied to the others. A forward is one batch of
// all windows with bidirectional attention and the logits of every row. Its rows are removed before the next forward.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

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
    Batch(const Batch &) = delete;
    Batch & operator=(const Batch &) = delete;

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

// Windows of `branches` sequences after one prefix.
class Side {
  public:
    Side(llama_model * model, int threads, int prefix, int branches, int window, const std::string & file)
        : prefix_(prefix), branches_(branches), rows_(branches * window),
          vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model))), batch_(branches * window) {
        const std::vector<int32_t> tokens = tokens_of_file(file, static_cast<size_t>(prefix + rows_));
        llama_context_params settings = llama_context_default_params();
        settings.n_batch = settings.n_ubatch = std::max(prefix, rows_); // bidirectional attention needs one batch
        settings.n_seq_max = branches;
        settings.n_ctx = branches * (prefix + window);
        settings.n_threads = settings.n_threads_batch = threads;
        context_.reset(llama_init_from_model(model, settings));
        require(context_ != nullptr, "llama.cpp could not create a context");
        llama_set_causal_attn(context_.get(), false);

        Batch first(prefix);
        for (int i = 0; i < prefix; ++i) {
            first.add(tokens[i], i, 0, false);
        }
        decode(first);
        for (int branch = 1; branch < branches; ++branch) {
            llama_memory_seq_cp(memory(), 0, branch, -1, -1);
        }
        for (int i = 0; i < rows_; ++i) {
            batch_.add(tokens[prefix + i], prefix + i % window, i / window, true);
        }
    }

    // Runs one forward and returns its seconds. The logits are valid until the next one.
    double run() {
        for (int branch = 0; branch < branches_; ++branch) {
            require(llama_memory_seq_rm(memory(), branch, prefix_, -1), "llama.cpp kept rows of the window");
        }
        const auto began = std::chrono::steady_clock::now();
        decode(batch_);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    }

    // Writes float32 [branches, window, vocabulary].
    void write_logits(const std::string & path) {
        std::ofstream file(path, std::ios::binary);
        for (int i = 0; i < rows_; ++i) {
            const float * row = llama_get_logits_ith(context_.get(), i);
            require(row != nullptr, "llama.cpp has no logits of row " + std::to_string(i));
            file.write(reinterpret_cast<const char *>(row), static_cast<std::streamsize>(vocabulary_ * sizeof(float)));
        }
        file.close();
        require(file.good(), "cannot write " + path);
    }

  private:
    llama_memory_t memory() { return llama_get_memory(context_.get()); }

    void decode(const Batch & batch) {
        const int32_t status = llama_decode(context_.get(), batch.get());
        require(status == 0, "llama_decode returned " + std::to_string(status));
        llama_synchronize(context_.get());
    }

    int prefix_, branches_, rows_, vocabulary_;
    Batch batch_;
    Context context_;
};

void quantize(const std::string & from, const std::string & to, const std::string & type, int threads) {
    llama_model_quantize_params settings = llama_model_quantize_default_params();
    require(type == "q4_0" || type == "q8_0", "received type " + type + ", expected q4_0 or q8_0");
    settings.ftype = type == "q4_0" ? LLAMA_FTYPE_MOSTLY_Q4_0 : LLAMA_FTYPE_MOSTLY_Q8_0;
    settings.nthread = threads;
    require(llama_model_quantize(from.c_str(), to.c_str(), &settings) == 0, "llama.cpp did not quantize " + from);
}

void answer_lines(const std::string & path, int threads) {
    const Model model(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
    require(model != nullptr, "llama.cpp cannot read " + path);
    std::cout << "open" << std::endl;
    std::unique_ptr<Side> side;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string what, file;
        words >> what;
        if (what == "prepare") {
            int prefix = 0, branches = 0, window = 0;
            words >> prefix >> branches >> window >> std::ws;
            std::getline(words, file);
            side.reset(); // frees the memory before the next allocation
            side = std::make_unique<Side>(model.get(), threads, prefix, branches, window, file);
            std::cout << "prepared" << std::endl;
        } else if (what == "run" && side) {
            std::cout << side->run() << std::endl;
        } else if (what == "answer" && side) {
            std::getline(words >> std::ws, file);
            side->write_logits(file);
            std::cout << "logits" << std::endl;
        } else {
            throw std::runtime_error("received \"" + line + "\", expected prepare, then run or answer");
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
        if (count == 4 && std::string(words[1]) == "run") {
            answer_lines(words[2], std::stoi(words[3]));
        } else if (count == 6 && std::string(words[1]) == "quantize") {
            quantize(words[2], words[3], words[4], std::stoi(words[5]));
        } else {
            throw std::runtime_error("expected: run MODEL THREADS, or quantize IN OUT TYPE THREADS");
        }
    } catch (const std::exception & error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    return 0;
}
