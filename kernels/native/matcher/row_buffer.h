// The masks of a batch in a buffer that stays: from one step to the next, only what differs is written.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "matcher/matcher.h"

namespace structgen {

// A row of 128,000 tokens takes 16 KiB, and most masks that follow each other are the same, or allow a few tokens each,
// or share all but a few.  The buffer remembers what each of its rows holds.
//
// The row of a matcher is that of fill_mask(), or of fill_mask_within() with what its limit leaves; past the end it allows
// everything.  Nobody else may write to the rows, unless forget() is called.
class RowBuffer {
 public:
  // `rows` of `words` words each, which outlive the buffer.
  RowBuffer(uint32_t* rows, size_t count, uint32_t words) : rows_(rows), words_(words), held_(count) {}

  size_t size() const { return held_.size(); }
  uint32_t words() const { return words_; }
  uint32_t* row(size_t index) { return rows_ + index * words_; }
  // Fills row i for matcher i where the mask is known, and waits for others for a millisecond at most; the rows that are
  // left are added to `left`.
  void fill_known(std::span<Matcher* const> matchers, std::vector<uint32_t>& left);
  // Fills these.  The ones that meet a limit, or have no token left, are added to `failed`, and may hold anything.
  void fill_left(std::span<Matcher* const> matchers, std::span<const uint32_t> left, std::vector<uint32_t>& failed);
  // Row `index` may have been written by others.
  void forget(size_t index) { held_[index].what = What::kUnknown; }

 private:
  static constexpr size_t kMostChanged = 192;  // corrections of a row; with more, copying all words is quicker
  enum class What : uint8_t {
    kUnknown,
    kEverything,
    kPlan,       // the mask of a plan, which is known by its number alone
    kCorrected,  // the words of `base` but for those in `changed`
  };
  struct Held {
    What what = What::kUnknown;
    bool ends = false;              // EOS is allowed besides
    uint32_t begin = 0, count = 0;  // of the plan, of
    uint64_t rows_epoch = 0;        // these rows
    std::shared_ptr<const Words> base;  // none: nothing is allowed
    std::vector<uint32_t> changed;

    // Whether it is the mask of a plan, perhaps with EOS.
    bool is(const Engine& engine, const Engine::Plan& plan) const {
      const bool is_known = what == What::kPlan || what == What::kCorrected;
      return is_known && rows_epoch == engine.rows_epoch() && begin == plan.begin && count == plan.count;
    }
  };

  void write(Held& held, uint32_t* words, const Matcher& matcher, const Engine& engine, const Engine::Plan& plan) const;
  void allow_all(size_t index);
  void fill_one(Matcher& matcher, uint32_t index, bool& failed);

  uint32_t* rows_;
  uint32_t words_;
  std::vector<Held> held_;
};

}  // namespace structgen
