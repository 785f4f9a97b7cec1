#include "test/standin/reduction.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "test/standin/error.hpp"

namespace standin {
namespace {

// How a value is stored and what it is computed in.
template <class T>
struct Native {
  using Stored = T;
  using Value = T;
  static Value load(Stored stored) { return stored; }
  static Stored store(Value value) { return value; }
};

struct Bfloat16 {
  using Stored = std::uint16_t;
  using Value = float;
  static float load(Stored stored) { return std::bit_cast<float>(static_cast<std::uint32_t>(stored) << 16); }
  static Stored store(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if (std::isnan(value)) return static_cast<Stored>((bits >> 16) | 0x40u);
    return static_cast<Stored>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);  // to nearest, ties to even
  }
};

struct Float16 {
  using Stored = std::uint16_t;
  using Value = float;
  static float load(Stored stored) {
    const int exponent = (stored >> 10) & 31;
    const int mantissa = stored & 0x3ff;
    float magnitude = 0;
    if (exponent == 31) {
      magnitude = mantissa == 0 ? INFINITY : NAN;
    } else if (exponent == 0) {
      magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    } else {
      magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
    }
    return (stored & 0x8000) != 0 ? -magnitude : magnitude;
  }
  static Stored store(float value) {
    const auto sign = static_cast<Stored>(std::signbit(value) ? 0x8000 : 0);
    if (std::isnan(value)) return static_cast<Stored>(sign | 0x7e00);
    const float magnitude = std::fabs(value);
    if (magnitude >= 65520.0F) return static_cast<Stored>(sign | 0x7c00);
    if (magnitude == 0) return sign;
    // The spacing of halves around the value; rounding to a multiple of it may carry into the next exponent, which
    // the sum of fields represents as well.
    const int exponent = std::max(std::ilogb(magnitude), -14);
    const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
    return static_cast<Stored>(sign | (((exponent + 14) << 10) + units));
  }
};

template <class Visitor>
void with_type(ncclDataType_t type, Visitor&& visit) {
  switch (type) {
    case ncclInt8:
      return visit(Native<std::int8_t>());
    case ncclUint8:
      return visit(Native<std::uint8_t>());
    case ncclInt32:
      return visit(Native<std::int32_t>());
    case ncclUint32:
      return visit(Native<std::uint32_t>());
    case ncclInt64:
      return visit(Native<std::int64_t>());
    case ncclUint64:
      return visit(Native<std::uint64_t>());
    case ncclFloat16:
      return visit(Float16());
    case ncclFloat32:
      return visit(Native<float>());
    case ncclFloat64:
      return visit(Native<double>());
    case ncclBfloat16:
      return visit(Bfloat16());
    default:
      throw Error(ncclInvalidUsage, "the stand-in does not add values of this type");
  }
}

// Sums and products of integers wrap around.
template <class Value>
Value combine(ncclRedOp_t op, Value left, Value right) {
  if (op == ncclMax) return std::max(left, right);
  if (op == ncclMin) return std::min(left, right);
  if constexpr (std::is_integral_v<Value>) {
    const auto a = static_cast<std::uint64_t>(static_cast<std::int64_t>(left));  // keeps the sign
    const auto b = static_cast<std::uint64_t>(static_cast<std::int64_t>(right));
    return static_cast<Value>(op == ncclSum ? a + b : a * b);
  } else {
    return op == ncclSum ? left + right : left * right;
  }
}

template <class Type>
typename Type::Stored stored_at(const std::byte* values, std::size_t index) {
  typename Type::Stored stored;
  std::memcpy(&stored, values + index * sizeof(stored), sizeof(stored));
  return stored;
}

template <class Type>
void store_scalar(std::array<std::byte, 8>* scalar, double value) {
  const typename Type::Stored stored = Type::store(static_cast<typename Type::Value>(value));
  std::memcpy(scalar->data(), &stored, sizeof(stored));
}

template <class Type>
void reduce_values(const Reduction& reduction, std::byte* result, const std::byte* const* parts, int rank_count,
                   int owner, std::size_t count) {
  using Value = typename Type::Value;
  const auto* scalar_bytes = reduction.device_scalar != nullptr ? static_cast<const std::byte*>(reduction.device_scalar)
                                                                : reduction.scalar.data();
  const Value scalar = Type::load(stored_at<Type>(scalar_bytes, 0));
  for (std::size_t index = 0; index < count; ++index) {
    Value sum{};
    for (int step = 1; step <= rank_count; ++step) {
      Value value = Type::load(stored_at<Type>(parts[(owner + step) % rank_count], index));
      if (reduction.scaled) value = Type::load(Type::store(static_cast<Value>(value * scalar)));
      sum = step == 1 ? value : Type::load(Type::store(combine(reduction.combine, sum, value)));
    }
    if constexpr (std::is_integral_v<Value>) sum = static_cast<Value>(sum / static_cast<Value>(reduction.divisor));
    const typename Type::Stored stored = Type::store(sum);
    std::memcpy(result + index * sizeof(stored), &stored, sizeof(stored));
  }
}

}  // namespace

std::size_t type_bytes(ncclDataType_t type) {
  static constexpr std::array<std::size_t, ncclNumTypes> bytes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  if (type < 0 || type >= ncclNumTypes) {
    throw Error(ncclInvalidArgument, "invalid data type " + std::to_string(static_cast<int>(type)));
  }
  return bytes[static_cast<std::size_t>(type)];
}

void Reduction::reduce(void* result, const std::byte* const* parts, int rank_count, int owner,
                       std::size_t count) const {
  with_type(type, [&](auto traits) {
    reduce_values<decltype(traits)>(*this, static_cast<std::byte*>(result), parts, rank_count, owner, count);
  });
}

ncclRedOp_t ReductionTable::create(const Reduction& reduction) {
  const std::lock_guard lock(mutex_);
  made_[next_] = reduction;
  return static_cast<ncclRedOp_t>(next_++);
}

void ReductionTable::destroy(ncclRedOp_t op) {
  const std::lock_guard lock(mutex_);
  if (made_.erase(static_cast<int>(op)) == 0)
    throw Error(ncclInvalidArgument, "not an operator made by this communicator");
}

Reduction ReductionTable::resolve(ncclRedOp_t op, ncclDataType_t type, int rank_count) {
  Reduction reduction;
  if (op >= ncclNumOps || op < 0) {
    const std::lock_guard lock(mutex_);
    const auto found = made_.find(static_cast<int>(op));
    if (found == made_.end()) {
      throw Error(ncclInvalidArgument, "invalid reduction operator " + std::to_string(static_cast<int>(op)));
    }
    if (found->second.type != type) throw Error(ncclInvalidArgument, "the operator was made for another data type");
    return found->second;
  }
  reduction.type = type;
  with_type(type, [&](auto traits) {
    using Type = decltype(traits);
    if (op != ncclAvg) {
      reduction.combine = op;
    } else if constexpr (std::is_integral_v<typename Type::Value>) {
      reduction.divisor = rank_count;
    } else {
      reduction.scaled = true;
      store_scalar<Type>(&reduction.scalar, 1.0 / rank_count);
    }
  });
  return reduction;
}

}  // namespace standin
