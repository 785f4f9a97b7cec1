// Writes the golden messages of this format version into a folder: golden-make FOLDER. To be run when a format version
// is new, never to make a failing test pass.
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>
#include <string>

#include "test/golden/golden.hpp"

namespace zipccl::test {
namespace {

GoldenMessage valid(std::string name, std::span<const std::uint16_t> values, std::uint32_t pool_fraction) {
  return {std::move(name), encode(values, pool_fraction, 1001, 2), Status::ok, hash_values(values)};
}

constexpr std::uint32_t three_modes_pool = 8200;  // 97 units, which hold its entries

// A raw tile, one with an entry of 3 units or so, and a partial one in mode tail.
std::vector<std::uint16_t> three_modes() {
  std::vector<std::uint16_t> values;
  for (const auto& [fill, count] :
       {std::pair{Fill::random_bits, 1024u}, {Fill::heavy_tails, 1024u}, {Fill::normal, 100u}}) {
    const auto more = make_values(fill, count, 1);
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

GoldenMessage corrupt(std::string name, Status status, const std::function<void(Message&)>& change,
                      std::uint32_t pool_fraction = three_modes_pool) {
  GoldenMessage golden{std::move(name), encode(three_modes(), pool_fraction, 1001, 2), status, 0};
  change(golden.message);
  return golden;
}

GoldenMessage corrupt_header(std::string name, Status status,
                             const std::function<void(codec::MessageHeader&)>& change) {
  return corrupt(std::move(name), status, [&](Message& message) {
    codec::MessageHeader header = message.header();
    change(header);
    message.set_header(header);
  });
}

std::vector<GoldenMessage> make_all() {
  using Header = codec::MessageHeader;
  std::vector<std::uint16_t> all_patterns(65536);
  std::iota(all_patterns.begin(), all_patterns.end(), std::uint16_t{0});

  std::vector<GoldenMessage> golden;
  golden.push_back(valid("valid-empty", {}, 64));
  golden.push_back(valid("valid-one", make_values(Fill::normal, 1, 1), 0));
  golden.push_back(valid("valid-all-patterns", all_patterns, 0));
  golden.push_back(valid("valid-normal", make_values(Fill::normal, 2500, 1), 64));
  golden.push_back(valid("valid-zeros", make_values(Fill::zeros, 1000, 1), 64));
  golden.push_back(valid("valid-nan-payloads", make_values(Fill::nan_payloads, 1025, 1), 0));
  golden.push_back(valid("valid-denormals", make_values(Fill::denormals, 1023, 1), 0));
  golden.push_back(valid("valid-outlier", make_values(Fill::outlier, 2048, 77), 256));
  golden.push_back(valid("valid-mixture-pool", make_values(Fill::mixture, 3000, 1), codec::max_pool_fraction));
  golden.push_back(valid("valid-mixture-overflow", make_values(Fill::mixture, 3000, 1), 0));
  golden.push_back(valid("valid-steps-straddling", make_values(Fill::steps, 3333, 1), 4000));
  golden.push_back(valid("valid-random-overflow", make_values(Fill::random_bits, 1030, 1), 100));
  golden.push_back(valid("valid-three-modes", three_modes(), three_modes_pool));

  golden.push_back(corrupt_header("corrupt-magic", Status::bad_magic, [](Header& h) { h.magic += 1; }));
  golden.push_back(corrupt_header("corrupt-version", Status::bad_version, [](Header& h) { h.version = 2; }));
  golden.push_back(corrupt_header("corrupt-dtype", Status::bad_dtype, [](Header& h) { h.dtype = 7; }));
  golden.push_back(corrupt_header("corrupt-count", Status::bad_count, [](Header& h) { h.count += 1; }));
  golden.push_back(corrupt_header("corrupt-pool", Status::bad_pool, [](Header& h) { h.pool_units -= 1; }));
  golden.push_back(corrupt_header("corrupt-sequence", Status::bad_sequence, [](Header& h) { h.sequence = 1000; }));
  golden.push_back(corrupt_header("corrupt-chunk", Status::bad_sequence, [](Header& h) { h.chunk = 3; }));
  golden.push_back(corrupt_header("corrupt-entry-units", Status::bad_totals, [](Header& h) { h.entry_units = 193; }));
  golden.push_back(corrupt_header("corrupt-escapes", Status::bad_totals, [](Header& h) { h.escapes = h.count + 1; }));
  golden.push_back(
      corrupt_header("corrupt-overflow-tiles", Status::bad_totals, [](Header& h) { h.overflow_tiles = 1; }));
  golden.push_back(corrupt("corrupt-window", Status::bad_tile, [](Message& m) { m.tail(2)[0] = 250; }));
  golden.push_back(corrupt("corrupt-mode", Status::bad_tile, [](Message& m) { m.tail(2)[1] = 3; }));
  golden.push_back(corrupt("corrupt-no-units", Status::bad_tile, [](Message& m) { m.tail(2)[1] = 1; }));
  golden.push_back(corrupt("corrupt-mode-tail", Status::bad_tile, [](Message& m) { m.tail(1)[1] = 0; }));
  golden.push_back(corrupt("corrupt-far-in-tail", Status::bad_tile, [](Message& m) { m.tail(2)[2] |= 15; }));
  golden.push_back(corrupt("corrupt-units", Status::bad_tile, [](Message& m) { m.tail(1)[1] = 1 + 4 * 63; }));
  golden.push_back(
      corrupt("corrupt-first-unit", Status::bad_tile, [](Message& m) { std::memset(m.tail(0) + 28, 255, 4); }));
  golden.push_back(
      corrupt("corrupt-codes", Status::bad_tile, [](Message& m) { std::memset(m.codes(1), 255, codec::code_bytes); }));
  golden.push_back(corrupt(
      "corrupt-first-unit-overflow", Status::bad_tile, [](Message& m) { std::memset(m.tail(0) + 28, 255, 4); }, 0));
  return golden;
}

}  // namespace
}  // namespace zipccl::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: golden-make FOLDER\n");
    return 2;
  }
  try {
    zipccl::test::save_golden(argv[1], zipccl::test::make_all());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "golden-make: %s\n", error.what());
    return 1;
  }
  return 0;
}
