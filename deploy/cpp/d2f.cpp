// A greedy D2F decode of a bundle with ONNX Runtime, from token ids to token ids. Copy and adapt it.
//   d2f BUNDLE MAX_NEW_TOKENS ID...   prints the ids of the answer. With 0 it runs one forward and prints of every row
//                                     the best token, its log-probability and the entropy of the distribution.
// It decodes as `lopa-export generate --strategy d2f` does (docs/reference/algorithm.md, sections 1 to 5, with the
// defaults of docs/concepts/decoding.md). docs/concepts/contract.md describes the graph's inputs and outputs.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <regex>
#include <sstream>
#include <valarray>

using Ids = std::vector<int64_t>;
struct Candidate { int64_t token; float logprob, entropy; };
constexpr int64_t kCandidates = 8, kTile = 64;  // candidates of a row; a cache has a multiple of kTile rows

void check(bool is_right, const std::string& message) { if (!is_right) throw std::runtime_error(message); }

// Return a number of a flat object in manifest.json. Applications that have a JSON library use that.
double number(const std::string& json, const std::string& object, const std::string& key) {
  std::smatch found;
  const std::regex pattern('"' + object + "\"[^}]*\"" + key + "\":\\s*([-+.0-9eE]+)");
  check(std::regex_search(json, found, pattern), "manifest.json has no number " + object + "." + key);
  return std::stod(found[1]);
}

struct Decode {  // a prompt and the opened blocks of its answer, which ends at the position `end`
  Ort::Session& session;
  const std::string& json;
  Ids tokens;
  int64_t end, cached = 0, forwards = 0;
  const int64_t prompt = tokens.size(), rows = (end + kTile - 1) / kTile * kTile;
  const int64_t mask = number(json, "special_tokens", "mask"), eos = number(json, "special_tokens", "eos");
  const int64_t heads = number(json, "dimensions", "kv_heads"), size = number(json, "dimensions", "head_size");
  const int64_t layers = number(json, "dimensions", "layers"), block = number(json, "decoding", "block_size");
  const int64_t shift = number(json, "with_logits", "prediction_shift");
  const double add_threshold = number(json, "decoding", "block_add_threshold");
  const double near_threshold = number(json, "decoding", "decoded_token_threshold");
  const float skip_threshold = number(json, "decoding", "skip_threshold");
  int64_t first = prompt, last = prompt - block;  // start of the first block with masked positions, and of the last one
  std::vector<Candidate> candidates{size_t(end + shift)};  // the newest one of each position
  std::vector<std::vector<float>> caches{size_t(2 * layers), std::vector<float>(heads * rows * size)};
  std::vector<Ort::Value> outputs{};

  void forward(const Ids& sampled) {  // run the tokens behind the cache for the candidates of the positions `sampled`
    Ids window(tokens.begin() + cached, tokens.end()), positions, index;
    for (int64_t at = cached; at < std::ssize(tokens); ++at) positions.push_back(at);
    for (const int64_t at : sampled) index.push_back(at - shift - cached);
    const int64_t width = window.size(), count = sampled.size();
    std::valarray<bool> attends(true, width * width), is_cached(rows);
    is_cached[std::slice(0, cached, 1)] = true;
    std::valarray<float> temperature(1, 1);
    Ort::IoBinding io(session);
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    const auto bind = [&](const std::string& name, auto& data, const Ids& dims) {
      io.BindInput(name.c_str(), Ort::Value::CreateTensor(memory, &data[0], data.size(), dims.data(), dims.size()));
    };
    bind("input_ids", window, {1, 1, width}), bind("position_ids", positions, {1, 1, width});
    bind("window_mask", attends, {1, 1, width, width}), bind("prefix_mask", is_cached, {1, rows});
    bind("logits_index", index, {1, 1, count}), bind("temperature", temperature, {1});
    for (const char* name : {"topk_ids", "topk_logprobs", "entropy"}) io.BindOutput(name, memory);
    for (int64_t each = 0; each < 2 * layers; ++each) {
      const std::string name = "key_values." + std::to_string(each / 2) + (each % 2 ? ".value" : ".key");
      bind("past_" + name, caches[each], {1, heads, rows, size});
      io.BindOutput(("window_" + name).c_str(), memory);
    }
    session.Run(Ort::RunOptions{}, io), ++forwards;
    outputs = io.GetOutputValues();
    const auto* ids = outputs[0].GetTensorData<int64_t>();
    const auto *logprobs = outputs[1].GetTensorData<float>(), *entropies = outputs[2].GetTensorData<float>();
    for (int64_t row = 0; row < count; ++row) {
      const int64_t best = row * kCandidates + (ids[row * kCandidates] == mask);  // the mask token is never unmasked
      check(std::isfinite(logprobs[best] + entropies[row]), "the forward returned NaN or infinity");
      candidates[sampled[row]] = {ids[best], logprobs[best], entropies[row]};
    }
  }
  void commit(int64_t count) {  // append the first rows of the last forward to the caches
    const int64_t width = tokens.size() - cached;
    for (int64_t each = 0; each < 2 * layers * heads; ++each)
      std::copy_n(outputs[3 + each / heads].GetTensorData<float>() + each % heads * width * size, count * size,
                  caches[each / heads].data() + (each % heads * rows + cached) * size);
    cached += count;
  }
  double progress(int64_t start) const {  // unmasked share of the block at `start`, 1 for the prompt
    const int64_t length = std::min<int64_t>(block, tokens.size() - start);
    return start < prompt ? 1 : double(length - std::count(&tokens[start], &tokens[start] + length, mask)) / length;
  }
  void unmask(int64_t start) {
    int64_t best = -1;
    bool needs_one = progress(start - block) >= near_threshold;
    for (int64_t at = start; at < std::min<int64_t>(start + block, tokens.size()); ++at) {
      if (tokens[at] != mask) continue;
      if (best < 0 || candidates[at].entropy < candidates[best].entropy) best = at;
      if (std::exp(candidates[at].logprob) > skip_threshold) tokens[at] = candidates[at].token, needs_one = false;
    }
    if (needs_one && best >= 0) tokens[best] = candidates[best].token;
  }
  void run() {
    while (first <= last || std::ssize(tokens) < end) {
      if (std::ssize(tokens) < end && progress(last) >= add_threshold)
        last += block, tokens.resize(std::min(last + block, end), mask);
      Ids sampled;  // masked positions. One that only a cached row predicts keeps its candidate
      for (int64_t at = cached + shift; at < std::ssize(tokens); ++at)
        if (tokens[at] == mask) sampled.push_back(at);
      forward(sampled.empty() ? Ids{cached + shift} : sampled);
      commit(first - cached);
      for (int64_t start = last; start >= first; start -= block) unmask(start);  // each looks at the one before
      const int64_t stop = std::find(tokens.begin() + prompt, tokens.end(), eos) - tokens.begin() + 1;
      if (stop <= std::ssize(tokens)) tokens.resize(end = stop), last = prompt + (stop - 1 - prompt) / block * block;
      while (first <= last && progress(first) == 1) first += block;
    }
  }
};

int main(int count, char** words) try {
  check(count > 3, "expected the arguments BUNDLE MAX_NEW_TOKENS ID...");
  const std::filesystem::path bundle = words[1];
  std::ifstream file(bundle / "manifest.json");
  const std::string json(std::istreambuf_iterator<char>(file), {});
  check(!json.empty(), bundle.string() + (exists(bundle) ? " has no manifest.json" : " does not exist: give a bundle"));
  const std::regex others("\"decoding\"[^}]*\"(attention|alignment|cache|confidence)\"|\"stops\"");
  check(!std::regex_search(json, others), "expected a bundle whose rows all attend to each other, as Dream's");
  Ids ids;
  for (int i = 2; i < count; ++i) {
    const int64_t max = number(json, "dimensions", i > 2 ? "vocab_size" : "max_positions") - (i > 2 ? 1 : count - 3);
    std::istringstream word(words[i]);
    check(word >> ids.emplace_back() && word.eof() && ids.back() >= 0 && ids.back() <= max,
          (i > 2 ? "ID '" : "MAX_NEW_TOKENS '") + word.str() + "' is no number from 0 to " + std::to_string(max));
  }
  const int64_t answer = ids.front(), prompt = ids.size() - 1;
  Ort::Env env(ORT_LOGGING_LEVEL_ERROR);
  Ort::SessionOptions options;
  options.AddConfigEntry("session.qdq_matmulnbits_accuracy_level", "1");  // int4 matrices: do not round activations
  Ort::Session session(env, (bundle / "model.onnx").c_str(), options);
  Decode decode{session, json, {ids.begin() + 1, ids.end()}, prompt + answer};
  Ids rows;
  while (!answer && std::ssize(rows) < prompt) rows.push_back(std::ssize(rows) + decode.shift);
  answer ? decode.run() : decode.forward(rows);
  std::cout.precision(9);
  const auto& best = decode.candidates;
  for (const auto at : rows) std::cout << best[at].token << ' ' << best[at].logprob << ' ' << best[at].entropy << '\n';
  for (int64_t at = prompt; at < std::ssize(decode.tokens); ++at) std::cout << decode.tokens[at] << ' ';
  std::cerr << decode.forwards << " forwards\n";
} catch (const std::exception& error) {
  return std::cerr << "error: " << error.what() << '\n', 2;
}
