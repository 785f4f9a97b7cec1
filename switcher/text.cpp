#include "switcher/text.hpp"

#include <algorithm>

#include "switcher/limits.hpp"

namespace zipccl::switcher {

std::string rank_name(std::size_t rank) { return std::string("rank ").append(std::to_string(rank)); }

std::string one_line(std::string_view text) {
  std::string line(text.substr(0, max_text_bytes));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return line;
}

}  // namespace zipccl::switcher
