#include "collectives/statistics.hpp"

#include <algorithm>
#include <bit>

namespace zipccl::collectives {

const char* to_string(Route route) {
  switch (route) {
    case Route::compressed:
      return "compressed";
    case Route::disabled:
      return "disabled";
    case Route::dtype:
      return "dtype";
    case Route::small:
      return "small";
    case Route::large:
      return "large";
    case Route::single_rank:
      return "single_rank";
    case Route::registered:
      return "registered";
    case Route::captured:
      return "captured";
    case Route::link:
      return "link";
    case Route::closed:
      return "closed";
    case Route::native:
      return "native";
  }
  return "unknown";
}

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::all_gather:
      return "all_gather";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::send:
      return "send";
    case Collective::receive:
      return "receive";
  }
  return "unknown";
}

bool Statistics::note_error(Status status) {
  std::int32_t none = 0;
  return error.compare_exchange_strong(none, static_cast<std::int32_t>(status));
}

Bucket& Statistics::bucket(Collective collective, std::uint64_t bytes) {
  const auto power = static_cast<std::size_t>(std::bit_width(bytes | 1) - 1);
  return buckets[static_cast<std::size_t>(collective)][std::min(power, bucket_count - 1)];
}

}  // namespace zipccl::collectives
