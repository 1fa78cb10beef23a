// A greedy D2F decode of a bundle with ONNX Runtime, from token ids to token ids. Copy and adapt it.
//   d2f BUNDLE MAX_NEW_TOKENS ID...   prints the ids of the answer. With 0 it runs one forward and prints of every row
//                                     the best token, its log-probability and the entropy of the distribution.
// It decodes as `lopa-export generate --strategy d2f` does (docs/reference/algorithm.md, sections 1 to 5, with the
// defaults of docs/concepts/decoding.md). docs/concepts/contract.md describes the graph's inputs and outputs.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <valarray>

using Ids = std::vector<int64_t>;
using Json = nlohmann::json;
struct Candidate { int64_t token; float logprob, entropy; };
constexpr int64_t kCandidates = 8, kTile = 64;  // candidates of a row; a cache has a multiple of kTile rows

void check(bool is_right, const std::string& message) { if (!is_right) throw std::runtime_error(message); }

struct Manifest {  // what a decode needs of manifest.json, in the ranges of lopa/runtime/bundle/manifest.py
  Json json;
  const int64_t contract = (number<int64_t>("/schema", 2, 3), number<int64_t>("/contract", 1, 1));  // 2 has no mask
  const int64_t positions = number<int64_t>("/dimensions/max_positions", 1, 1 << 24);
  const int64_t vocabulary = number<int64_t>("/dimensions/vocab_size", kCandidates, 1 << 24);
  const int64_t layers = number<int64_t>("/dimensions/layers", 1, 4096);
  const int64_t heads = number<int64_t>("/dimensions/kv_heads", 1, 4096);
  const int64_t size = number<int64_t>("/dimensions/head_size", 2, 4096);
  const int64_t shift = number<int64_t>("/prediction_shift", 0, 1);  // 1 if a row predicts the next position
  const int64_t mask = number<int64_t>("/special_tokens/mask", 0, vocabulary - 1);
  Ids ends{number<int64_t>("/special_tokens/eos", 0, vocabulary - 1)};  // ids that end an answer
  const int64_t block = option<int64_t>("block_size", 1, 1 << 20);
  const double add_threshold = option<double>("block_add_threshold", 0, 1);
  const double near_threshold = option<double>("decoded_token_threshold", 0, 1);
  const float skip_threshold = option<float>("skip_threshold", 0, 1);

  explicit Manifest(const std::string& text) : json(Json::parse(text)) {
    check_at("/architecture", value("/architecture").is_string(), "a name");
    check_at("/quantization/kind", value("/quantization/kind") != "fp8", "\"int8\" or \"int4\": CPUs have no FP8");
    check_at("/graph", value("/graph") == "model.onnx", "\"model.onnx\"");
    for (const auto& [architecture, own] : {std::pair{"dream", 1}, {"llada", 0}, {"llada-moe", 0}})
      check_at("/prediction_shift", value("/architecture") != architecture || shift == own, std::to_string(own));
    const Json& stops = value("/special_tokens/stops");
    check_at("/special_tokens/stops", stops.is_null() || stops.is_array(), "a list");
    for (size_t at = 0; at < stops.size(); ++at)
      ends.push_back(number<int64_t>("/special_tokens/stops/" + std::to_string(at), 0, vocabulary - 1));
    check_at("/special_tokens/mask", !std::ranges::count(ends, mask), "an id that does not end an answer");
    // Any other option could change the answer. These have one form here, are read above, or concern other strategies.
    const std::map<std::string, std::string> fixed{
        {"attention", "full"}, {"alignment", "prompt"}, {"cache", "blocks"}, {"confidence", "neg_entropy"}};
    const std::set<std::string> known{"block_size", "block_add_threshold", "decoded_token_threshold", "skip_threshold",
                                      "add_bos", "branches", "max_new_tokens", "preset", "strategy"};
    for (const std::string object : {"/decoding", "/defaults"}) {
      check_at(object, value(object).is_null() || value(object).is_object(), "an object");
      for (const auto& [name, found] : value(object).items()) {
        const std::string path = (Json::json_pointer(object) / name).to_string();
        if (fixed.contains(name)) check_at(path, found == fixed.at(name), Json(fixed.at(name)).dump());
        else check_at(path, found.is_null() || known.contains(name), "no such option");
      }
    }
  }
  const Json& value(const std::string& path) const {  // null if there is none; no copy, which could nest too deeply
    static const Json none;
    const Json::json_pointer pointer(path);
    return json.contains(pointer) ? json.at(pointer) : none;
  }
  void check_at(const std::string& path, bool is_right, const std::string& expected) const {
    const Json& found = value(path);
    const std::string shown = found.is_structured() ? found.type_name() : found.dump(-1, ' ', true).substr(0, 80);
    check(is_right, "manifest.json has " + path + " = " + shown + ", expected " + expected);
  }
  template <class T> T number(const std::string& path, T min, T max) const {
    const Json& found = value(path);
    const bool is_number = std::is_integral_v<T> ? found.is_number_integer() : found.is_number();
    const double given = is_number ? found.get<double>() : NAN;
    const std::string kind = std::is_integral_v<T> ? "a whole number from " : "a number from ";
    check_at(path, given >= min && given <= max, kind + Json(min).dump() + " to " + Json(max).dump());
    return T(given);
  }
  template <class T> T option(const std::string& name, T min, T max) const {  // the checkpoint's, or its owner's
    const std::string path = "/defaults/" + name;
    return number<T>(value(path).is_null() ? "/decoding/" + name : path, min, max);
  }
};

struct Decode {  // a prompt and the opened blocks of its answer, which ends at the position `end`
  Ort::Session& session;
  const Manifest& manifest;
  Ids tokens;
  int64_t end, cached = 0, forwards = 0;
  const int64_t prompt = tokens.size(), rows = (end + kTile - 1) / kTile * kTile;
  const int64_t heads = manifest.heads, size = manifest.size, layers = manifest.layers;
  const int64_t mask = manifest.mask, block = manifest.block, shift = manifest.shift;
  int64_t first = prompt, last = prompt - block;  // start of the first block with masked positions, and of the last one
  std::vector<Candidate> candidates{size_t(end + shift)};  // the newest one of each position
  std::vector<std::vector<float>> caches{size_t(2 * layers), std::vector<float>(heads * rows * size)};
  std::vector<Ort::Value> outputs{};

  template <class T> const T* output(int64_t index, int64_t count) const {
    const auto info = outputs[index].GetTensorTypeAndShapeInfo();
    check(info.GetElementType() == Ort::TypeToTensorType<T>::type && int64_t(info.GetElementCount()) == count,
          "output " + std::to_string(index) + " of model.onnx is not that of docs/concepts/contract.md");
    return outputs[index].GetTensorData<T>();
  }
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
    const auto* ids = output<int64_t>(0, count * kCandidates);
    const auto *logprobs = output<float>(1, count * kCandidates), *entropies = output<float>(2, count);
    for (int64_t row = 0; row < count; ++row) {  // with the checks of lopa/runtime/contract/row_statistics.py
      const int64_t top = row * kCandidates, best = top + (ids[top] == mask);  // the mask token is never unmasked
      const auto [min, max] = std::minmax_element(ids + top, ids + top + kCandidates);
      const float sum = std::valarray(logprobs + top, kCandidates).sum();  // after the first, -infinity is underflow
      check(std::isfinite(logprobs[top] + entropies[row]) && sum < INFINITY, "the forward returned NaN or infinity");
      check(*min >= 0 && *max < manifest.vocabulary, "the forward returned token ids outside the vocabulary");
      check(ids[best] != mask, "the forward returned the mask token twice for a position");  // would loop for ever
      candidates[sampled[row]] = {ids[best], logprobs[best], entropies[row]};
    }
  }
  void commit(int64_t count) {  // append the first rows of the last forward to the caches
    const int64_t width = tokens.size() - cached;
    for (int64_t each = 0; each < 2 * layers * heads; ++each)
      std::copy_n(output<float>(3 + each / heads, heads * width * size) + each % heads * width * size, count * size,
                  caches[each / heads].data() + (each % heads * rows + cached) * size);
    cached += count;
  }
  double progress(int64_t start) const {  // unmasked share of the block at `start`, 1 for the prompt
    const int64_t length = std::min<int64_t>(block, tokens.size() - start);
    return start < prompt ? 1 : double(length - std::count(&tokens[start], &tokens[start] + length, mask)) / length;
  }
  void unmask(int64_t start) {
    int64_t best = -1;
    bool needs_one = progress(start - block) >= manifest.near_threshold;
    for (int64_t at = start; at < std::min<int64_t>(start + block, tokens.size()); ++at) {
      if (tokens[at] != mask) continue;
      if (best < 0 || candidates[at].entropy < candidates[best].entropy) best = at;
      if (std::exp(candidates[at].logprob) > manifest.skip_threshold)
        tokens[at] = candidates[at].token, needs_one = false;
    }
    if (needs_one && best >= 0) tokens[best] = candidates[best].token;
  }
  void run() {
    while (first <= last || std::ssize(tokens) < end) {
      if (std::ssize(tokens) < end && progress(last) >= manifest.add_threshold)
        last += block, tokens.resize(std::min(last + block, end), mask);
      Ids sampled;  // masked positions. One that only a cached row predicts keeps its candidate
      for (int64_t at = cached + shift; at < std::ssize(tokens); ++at)
        if (tokens[at] == mask) sampled.push_back(at);
      forward(sampled.empty() ? Ids{cached + shift} : sampled);
      commit(first - cached);
      for (int64_t start = last; start >= first; start -= block) unmask(start);  // each looks at the one before
      const auto& ends = manifest.ends;
      const auto found = std::find_first_of(tokens.begin() + prompt, tokens.end(), ends.begin(), ends.end());
      const int64_t stop = found - tokens.begin() + 1;
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
  check(Json::accept(json), bundle.string() + "/manifest.json is not JSON, expected that of lopa-export onnx");
  const Manifest manifest(json);
  Ids ids;
  for (int i = 2; i < count; ++i) {
    const int64_t max = i > 2 ? manifest.vocabulary - 1 : manifest.positions - (count - 3);
    const std::string word = words[i];
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), ids.emplace_back());
    check(error == std::errc() && stop == word.data() + word.size() && ids.back() >= 0 && ids.back() <= max,
          (i > 2 ? "ID '" : "MAX_NEW_TOKENS '") + word + "' is no number from 0 to " + std::to_string(max));
  }
  const int64_t answer = ids.front(), prompt = ids.size() - 1;
  Ort::Env env(ORT_LOGGING_LEVEL_ERROR);
  Ort::SessionOptions options;
  options.AddConfigEntry("session.qdq_matmulnbits_accuracy_level", "1");  // int4 matrices: do not round activations
  Ort::Session session(env, (bundle / "model.onnx").c_str(), options);
  const int64_t inputs = session.GetInputCount();
  const auto last_input = session.GetInputTypeInfo(inputs - 1);
  const auto cache = last_input.GetTensorTypeAndShapeInfo();  // compared before memory is taken for the caches
  const auto shape = cache ? cache.GetShape() : Ids{};  // null if it is no tensor but a sequence or optional
  check(shape.size() == 4 && cache.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT &&
            inputs == 6 + 2 * manifest.layers && shape[1] == manifest.heads && shape[3] == manifest.size,
        "model.onnx has other caches than manifest.json, expected a standard graph in float32");
  Decode decode{session, manifest, {ids.begin() + 1, ids.end()}, prompt + answer};
  Ids rows;
  while (!answer && std::ssize(rows) < prompt) rows.push_back(std::ssize(rows) + manifest.shift);
  answer ? decode.run() : decode.forward(rows);
  std::cout.precision(9);
  const auto& best = decode.candidates;
  for (const auto at : rows) std::cout << best[at].token << ' ' << best[at].logprob << ' ' << best[at].entropy << '\n';
  for (int64_t at = prompt; at < std::ssize(decode.tokens); ++at) std::cout << decode.tokens[at] << ' ';
  std::cerr << decode.forwards << " forwards\n";
} catch (const std::bad_alloc&) {
  return std::cerr << "error: out of memory, expected room for the bundle and for the caches of all positions\n", 2;
} catch (const std::exception& error) {
  return std::cerr << "error: " << error.what() << '\n', 2;
}
