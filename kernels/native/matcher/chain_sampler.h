// A matcher as a sampler of llama.cpp, for its own chains of samplers.
//
// llama.cpp is told of samplers by a table of C functions (`llama_sampler_i` in its llama.h), so none of its headers is
// needed to build this, and one build serves all its releases.  What is taken from llama.h is declared below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "matcher/matcher.h"

namespace structgen {

// As llama.h has had them since September 2024; the Python face compares them with what an installed llama.cpp does.
namespace llama {

struct TokenData {  // llama_token_data
  int32_t id;
  float logit;
  float p;
};

struct TokenDataArray {  // llama_token_data_array
  TokenData* data;
  size_t size;
  int64_t selected;  // an index into `data`; -1: none yet
  bool sorted;       // by descending logits
};

struct Sampler;

struct SamplerTable {  // llama_sampler_i
  const char* (*name)(const Sampler*);
  void (*accept)(Sampler*, int32_t token);
  void (*apply)(Sampler*, TokenDataArray*);
  void (*reset)(Sampler*);
  Sampler* (*clone)(const Sampler*);
  void (*free)(Sampler*);
  void (*backend[5])();  // sampling on the device: a sampler without it runs on the host
  void (*copy_state)(const Sampler* from, Sampler* to);  // since 2026
  void (*later[20])();  // what later releases add at the end
};

struct Sampler {  // llama_sampler; llama_sampler_init allocates it, llama_sampler_free deletes it
  SamplerTable* table;
  void* context;
};

using Init = Sampler* (*)(SamplerTable*, void* context);  // llama_sampler_init

static_assert(sizeof(TokenData) == 12 && sizeof(TokenDataArray) == 2 * sizeof(void*) + 16 && sizeof(Sampler) == 2 * sizeof(void*));

}  // namespace llama

// Where an output stands, and what went wrong with it.
struct ChainState {
  enum class Cause { kRefused, kStarved, kFailed };
  struct Fault {
    Cause cause;
    std::vector<int32_t> tokens;  // the output before it
    int32_t token;                // that was chosen; -1: none was
    size_t candidates;            // that the last masked array had
    bool starved;                 // whether none of these could be chosen
    std::string what;             // kFailed: of the exception
  };

  Matcher matcher;
  std::optional<uint32_t> budget, left;  // the most tokens, EOS not counted
  uint32_t limit;                        // of token ids: the vocabulary's size
  std::vector<uint32_t> words;           // the mask, if `is_filled`
  bool is_filled = false;
  std::vector<int32_t> tokens = {};
  size_t candidates = 0;
  bool is_starved = false;  // no candidate of the last array could be chosen
  bool has_failed = false;  // then only EOS is allowed
  std::optional<Fault> fault = {};
  bool was_told = false;  // whether somebody has asked since
};

// One output, as a chain writes it.  Nothing throws: what goes wrong is kept, and from then on only EOS is allowed.
// Calls may come from any thread, one after the other.
class ChainSampler {
 public:
  using Cause = ChainState::Cause;
  using Fault = ChainState::Fault;

  // `budget`: the most tokens, EOS not counted.
  ChainSampler(std::shared_ptr<const Constraint> constraint, std::optional<uint32_t> budget);
  ChainSampler(const ChainSampler& other);

  // Excludes the candidates that may not come next.
  void apply(llama::TokenDataArray& candidates) noexcept;
  void accept(int32_t token) noexcept;
  // Begins another output.  A fault that nobody was told of is kept.
  void reset() noexcept;
  // Goes on where `other` is.  A fault that nobody was told of is kept.
  void take(const ChainSampler& other) noexcept;

  // The first fault; also that the last masked array had nothing to choose.
  std::optional<Fault> fault();
  // The tokens that were accepted, EOS left out.
  std::vector<int32_t> tokens() const;
  bool is_accepting() const;
  bool is_terminated() const;

  // A new sampler of llama.cpp that moves `sampler`; null if what `init` made is not laid out as above.
  static llama::Sampler* wrap(std::shared_ptr<ChainSampler> sampler, llama::Init init);
  // What a sampler of llama.cpp moves; nothing if wrap() or a clone did not make it.
  static std::shared_ptr<ChainSampler> find(const llama::Sampler* sampler);
  static llama::SamplerTable* table();
  static size_t living();  // samplers of llama.cpp that it has not freed yet

 private:
  const Constraint& constraint() const { return now_.matcher.constraint(); }
  void fill();
  void end(llama::TokenDataArray& candidates) const;
  void keep(Cause cause, int32_t token, const char* what) noexcept;
  bool is_allowed(uint32_t token) const { return token < now_.limit && (now_.words[token >> 5] >> (token & 31) & 1) != 0; }
  ChainState locked() const;

  mutable std::mutex mutex_;
  ChainState now_;
};

}  // namespace structgen
