#include "switcher/fence_wire.hpp"

#include <concepts>

namespace zipccl::switcher {
namespace {

template <std::unsigned_integral T>
void put(FenceBytes* bytes, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) (*bytes)[at + i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral T>
T get(std::span<const std::byte> bytes, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (std::to_integer<T>(bytes[at + i]) << (8 * i)));
  }
  return value;
}

}  // namespace

FenceBytes encode_fence(const FenceMessage& message) {
  FenceBytes bytes{};
  put(&bytes, 0, static_cast<std::uint8_t>(message.type));
  put(&bytes, 1, static_cast<std::uint8_t>(message.setting.compressed ? 1 : 0));
  put(&bytes, 4, message.setting.pool_fraction);
  put(&bytes, 8, message.round);
  put(&bytes, 16, message.call);
  put(&bytes, 24, message.setting.staging_bytes);
  put(&bytes, 32, message.setting.history);
  return bytes;
}

std::optional<FenceMessage> decode_fence(std::span<const std::byte> bytes) {
  if (bytes.size() != fence_message_bytes) return std::nullopt;
  const auto type = get<std::uint8_t>(bytes, 0);
  const auto compressed = get<std::uint8_t>(bytes, 1);
  if (type < static_cast<std::uint8_t>(FenceMessageType::wish) ||
      type > static_cast<std::uint8_t>(FenceMessageType::keep) || compressed > 1 || get<std::uint16_t>(bytes, 2) != 0) {
    return std::nullopt;
  }
  FenceMessage message;
  message.type = static_cast<FenceMessageType>(type);
  message.setting.compressed = compressed == 1;
  message.setting.pool_fraction = get<std::uint32_t>(bytes, 4);
  message.round = get<std::uint64_t>(bytes, 8);
  message.call = get<std::uint64_t>(bytes, 16);
  message.setting.staging_bytes = get<std::uint64_t>(bytes, 24);
  message.setting.history = get<std::uint64_t>(bytes, 32);
  if (message.setting.compressed != (message.setting.staging_bytes != 0)) return std::nullopt;
  if (!message.setting.compressed && (message.setting.pool_fraction != 0 || message.setting.history != 0)) {
    return std::nullopt;
  }
  return message;
}

}  // namespace zipccl::switcher
