// The arrays of a step, from the scheduler's pieces of sequences.
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bindings/bindings.h"
#include "program/program.h"

namespace ei {

// Reads each object of Python once: a step that streams the weights has left nothing of them in the
// caches, so that every line of them, and of the code that reads them, costs a miss.
class SequenceRows {
 public:
  struct Place {
    int32_t piece, token;
  };

  SequenceRows(const Program& p, nanobind::handle pieces) {
    std::vector<nanobind::object> all;
    for (nanobind::handle piece : pieces) all.push_back(nanobind::borrow(piece));
    std::vector<Place> prompt_rows;
    std::vector<bool> prompt_wanted;
    std::vector<int32_t> prompt_tokens;
    for (size_t i = 0; i < all.size(); ++i) {
      require(PyTuple_Check(all[i].ptr()) && PyTuple_GET_SIZE(all[i].ptr()) == 7,
              "a piece is a tuple of seven");
      const auto field = [&](int n) { return nanobind::handle(PyTuple_GET_ITEM(all[i].ptr(), n)); };
      const int64_t start = nanobind::cast<int64_t>(field(1)),
                    count = nanobind::cast<int64_t>(field(2)),
                    prompt = nanobind::cast<int64_t>(field(3));
      const bool last = nanobind::cast<bool>(field(5)), every = nanobind::cast<bool>(field(6));
      require(start >= 0 && count >= 0 && start + count <= INT32_MAX,
              "a piece begins at 0 or later");
      for (int64_t t = start; t < start + count; ++t) {
        const Place place{static_cast<int32_t>(i), static_cast<int32_t>(t)};
        const int32_t token = item(field(0), t);
        const bool wanted = every || (last && t + 1 == start + count);
        if (t >= prompt) {
          add(place, token, wanted);
        } else {
          prompt_rows.push_back(place);
          prompt_tokens.push_back(token);
          prompt_wanted.push_back(wanted);
        }
      }
      read_tables(field(4), static_cast<int32_t>(start + count));
    }
    decode_rows_ = static_cast<int32_t>(tokens_.size());
    for (size_t r = 0; r < prompt_rows.size(); ++r)
      add(prompt_rows[r], prompt_tokens[r], prompt_wanted[r]);
    for (int axis = 0; axis < p.spec().position_axes; ++axis)
      positions_.insert(positions_.end(), index_.begin(), index_.end());
    pad_tables(static_cast<int32_t>(all.size()));
    sequences_ = static_cast<int32_t>(all.size());
  }

  StepInput input() const {
    StepInput in;
    in.rows = static_cast<int32_t>(tokens_.size());
    in.decode_rows = decode_rows_;
    in.tokens = tokens_.data();
    in.positions = positions_.data();
    in.cache_index = index_.data();
    in.visible_end = visible_.data();
    in.sequence = sequence_.data();
    in.output_rows = wanted_.data();
    in.outputs = static_cast<int32_t>(wanted_.size());
    in.sequences = sequences_;
    for (const std::vector<int32_t>& t : padded_)
      in.groups.push_back({t.data(), width_, lengths_.data()});
    return in;
  }

  nanobind::list outputs() const {
    nanobind::list out;
    for (const int32_t r : wanted_) out.append(nanobind::make_tuple(sequence_[r], index_[r]));
    return out;
  }

 private:
  static int32_t integer(nanobind::handle h) {
    const long value = PyLong_AsLong(h.ptr());
    if (value == -1 && PyErr_Occurred()) throw nanobind::python_error();
    require(value >= INT32_MIN && value <= INT32_MAX, "tokens and blocks are 32-bit integers");
    return static_cast<int32_t>(value);
  }
  static int32_t item(nanobind::handle sequence, int64_t i) {
    if (PyList_Check(sequence.ptr()) && i < PyList_GET_SIZE(sequence.ptr()))
      return integer(PyList_GET_ITEM(sequence.ptr(), i));
    const nanobind::object value = nanobind::steal(PySequence_GetItem(sequence.ptr(), i));
    if (!value.is_valid()) throw nanobind::python_error();
    return integer(value);
  }

  void add(Place place, int32_t token, bool wanted) {
    if (wanted) wanted_.push_back(static_cast<int32_t>(tokens_.size()));
    tokens_.push_back(token);
    sequence_.push_back(place.piece);
    index_.push_back(place.token);
    visible_.push_back(place.token + 1);
  }

  // tables_[group] takes one table a sequence.
  void read_tables(nanobind::handle blocks, int32_t length) {
    const nanobind::list tables = nanobind::cast<nanobind::list>(blocks.attr("tables"));
    tables_.resize(std::max(tables_.size(), tables.size()));
    for (size_t g = 0; g < tables.size(); ++g) {
      std::vector<int32_t> table;
      const nanobind::list items = nanobind::cast<nanobind::list>(tables[g]);
      table.reserve(items.size());
      for (nanobind::handle block : items) table.push_back(integer(block));
      width_ = std::max<int32_t>(width_, static_cast<int32_t>(table.size()));
      tables_[g].push_back(std::move(table));
    }
    lengths_.push_back(length);
  }

  void pad_tables(int32_t sequences) {
    for (const auto& group : tables_) {
      require(static_cast<int32_t>(group.size()) == sequences, "every piece has the same groups");
      std::vector<int32_t>& flat = padded_.emplace_back();
      flat.assign(static_cast<size_t>(sequences) * width_, -1);
      for (size_t i = 0; i < group.size(); ++i)
        std::copy(group[i].begin(), group[i].end(), flat.begin() + i * width_);
    }
  }

  std::vector<int32_t> tokens_, positions_, index_, visible_, sequence_, wanted_, lengths_;
  std::vector<std::vector<std::vector<int32_t>>> tables_;
  std::vector<std::vector<int32_t>> padded_;
  int32_t decode_rows_ = 0, sequences_ = 0, width_ = 1;
};

}  // namespace ei
