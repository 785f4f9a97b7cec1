// Pieces of refusals and reasons, which end up in one log line each.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace zipccl::switcher {

std::string rank_name(std::size_t rank);  // "rank 3"

// The text on one line of at most max_text_bytes, with a '?' for every control character.
std::string one_line(std::string_view text);

}  // namespace zipccl::switcher
