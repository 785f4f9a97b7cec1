// Batches of messages on one GPU: rows and lists, of which any may overflow, encodes beside receives, and observations.
// Arguments:
// [--quick | --times]. Exit code 77 without a GPU.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "codec/format.hpp"
#include "test/gpu/codec_inputs.hpp"
#include "test/gpu/device_fixture.hpp"
#include "test/perf/device_timer.hpp"
#include "test/unit/codec_batch.hpp"
#include "test/unit/codec_gather.hpp"

namespace zipccl::test {
namespace {

using codec::Layout;

class GpuMachine final : public Machine {
 public:
  explicit GpuMachine(codec::Device& device) : device_(device) {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess, "stream");
  }
  ~GpuMachine() override { cudaStreamDestroy(stream_); }
  GpuMachine(const GpuMachine&) = delete;
  GpuMachine& operator=(const GpuMachine&) = delete;

  void* allocate(std::size_t bytes) override {
    memory_.emplace_back(device_, std::max<std::size_t>(bytes, 1));
    return memory_.back().data();
  }
  void* allocate_mapped(std::size_t bytes) override {
    void* memory = nullptr;
    require(device_.allocate_mapped(&memory, bytes), device_, "mapped memory");
    mapped_.push_back(memory);
    return memory;
  }
  void free_all() override {
    memory_.clear();
    for (void* memory : mapped_) device_.release_mapped(memory);
    mapped_.clear();
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    if (bytes != 0) test::upload(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    if (bytes != 0) test::download(to, from, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    require(device_.copy(to, from, bytes, stream_), device_, "copy");
  }
  Status run(const codec::EncodeJob& job) override { return device_.encode(job, stream_); }
  Status run(const codec::ReceiveJob& job) override { return device_.receive(job, stream_); }
  Status run(const codec::EncodeJob& encode, const codec::ReceiveJob& receive) override {
    return device_.encode_and_receive(encode, receive, stream_);
  }
  Status run(const codec::ObserveJob& job) override { return device_.observe(job, stream_); }
  void finish() override { synchronize(); }
  bool is_canonical() const override { return false; }

 private:
  codec::Device& device_;
  cudaStream_t stream_ = nullptr;
  std::vector<Memory> memory_;
  std::vector<void*> mapped_;
};

void rows(codec::Device& device, bool quick) {
  for (const std::uint32_t ranks : {2u, 3u, 8u}) {
    for (const std::uint32_t pool_fraction : {0u, 16u, 2000u}) {
      GpuMachine machine(device);
      BatchRanks batch(machine, {ranks, pool_fraction, 4096, 8192});
      std::mt19937_64 random(ranks);
      for (const std::uint64_t count : {0u, 1u, 1024u, 5000u, 40000u}) {
        std::vector<Fill> fills;
        for (std::uint32_t i = 0; i < ranks * ranks; ++i) {
          fills.push_back(random() % 2 == 0 ? Fill::normal : all_fills[random() % std::size(all_fills)]);
        }
        const std::string wrong = batch.all_to_all(count, fills, count % 3 == 0 ? 0 : 3);
        expect(wrong.empty(), std::to_string(ranks) + " ranks in rows: " + wrong);
      }
      if (quick) break;
    }
    if (quick) break;
  }
}

void lists(codec::Device& device, bool quick) {
  std::mt19937_64 random(7);
  for (const std::uint32_t ranks : {4u, 2u}) {
    for (const std::uint32_t pool_fraction : {16u, 0u, 1000u}) {
      GpuMachine machine(device);
      BatchRanks batch(machine, {ranks, pool_fraction, 4000, 1 << 16});
      for (int round = 0; round < (quick ? 3 : 25); ++round) {
        std::vector<Transfer> transfers;
        const std::uint64_t messages = round == 0 ? 0 : random() % (round % 4 == 1 ? 200 : 12);
        for (std::uint64_t i = 0; i < messages; ++i) {
          constexpr std::uint64_t counts[] = {0, 1, 7, 1000, 1024, 1025, 3333, 60000};
          const auto sender = static_cast<std::uint32_t>(random() % ranks);
          const auto receiver = static_cast<std::uint32_t>(random() % ranks);
          transfers.push_back({sender, receiver, counts[random() % std::size(counts)],
                               all_fills[random() % std::size(all_fills)], random() % 1000,
                               static_cast<std::uint32_t>(round % 2 == 0 ? 0 : random() % 9)});
        }
        const std::string wrong = batch.exchange(transfers);
        expect(wrong.empty(), std::to_string(ranks) + " ranks in lists: " + wrong);
      }
      if (quick) return;
    }
  }
  GpuMachine machine(device);
  BatchRanks batch(machine, {2, 0, 4096, 4096});
  std::vector<Transfer> transfers;
  for (std::uint32_t i = 0; i < 1200; ++i) {
    transfers.push_back({0, 1, i % 97, i % 100 == 0 ? Fill::random_bits : Fill::normal, i, 0});
  }
  std::string wrong = batch.exchange(transfers);
  expect(wrong.empty(), "a list longer than a launch: " + wrong);
  wrong = batch.exchange(transfers, 3);
  expect(wrong.empty(), "a bad header in a list's first launch: " + wrong);
}

// Encodes beside receives, of one chunk and the chunk before.
void gathers(codec::Device& device, bool quick) {
  std::mt19937_64 random(5);
  GpuMachine machine(device);
  const auto run = [&](const GatherShape& shape, std::span<const Fill> kinds, Beside form) {
    std::vector<Fill> fills(shape.counts.size() * shape.ranks);
    for (Fill& fill : fills) fill = kinds[random() % kinds.size()];
    const std::string wrong = gather(machine, shape, fills, form);
    expect(wrong.empty(), std::to_string(shape.ranks) + " ranks, pool fraction " + std::to_string(shape.pool_fraction) +
                              ", offsets " + std::to_string(shape.input_offset) + " and " +
                              std::to_string(shape.output_offset) + ", form " + std::to_string(static_cast<int>(form)) +
                              ": " + wrong);
  };
  constexpr Fill all_raw[] = {Fill::random_bits};
  constexpr Fill ordinary[] = {Fill::normal};
  const std::vector<std::uint64_t> counts[] = {
      {8 * 1024, 8 * 1024, 5000}, {1024, 0, 1025, 1}, {0, 3000}, {777}, {100000, 100000, 100003}};
  for (const std::uint32_t ranks : {2u, 1u, 3u, 8u}) {
    for (const std::uint32_t pool_fraction : {16u, 0u, 2000u}) {
      for (const auto& some : counts) {
        for (const Beside form : all_forms) {
          GatherShape shape{.ranks = ranks, .pool_fraction = pool_fraction, .counts = some};
          shape.input_offset = static_cast<std::uint32_t>(random() % 2 == 0 ? 0 : random() % 9);
          shape.output_offset = static_cast<std::uint32_t>(random() % 2 == 0 ? 0 : random() % 9);
          run(shape, all_fills, form);
        }
      }
    }
    if (quick) break;
  }
  for (const std::uint32_t offset : {0u, 3u}) {
    GatherShape shape{.ranks = 3, .pool_fraction = 0, .counts = {20000, 20000, 20000, 7}};
    shape.output_offset = offset;
    shape.outbox_capacity = 1008;
    shape.mailbox_capacity = 2064;
    for (const Beside form : all_forms) run(shape, all_raw, form);
    shape.counts.assign(3, quick ? 100000 : 3000001);  // many more blocks than run at once
    shape.outbox_capacity = shape.mailbox_capacity = 1 << 20;
    run(shape, all_raw, Beside::message_and_row);
    shape.pool_fraction = 16;
    run(shape, ordinary, Beside::message_and_row);
  }
  const std::string wrong = refuse_beside(machine);
  expect(wrong.empty(), "jobs beside each other: " + wrong);
}

// Many messages, many of them overflowing at once and waiting for each other, ranks' records of several pieces.
void crowded(codec::Device& device) {
  GpuMachine machine(device);
  BatchRanks batch(machine, {2, 0, 1 << 16, 1 << 20});
  std::vector<Transfer> transfers;
  for (std::uint32_t i = 0; i < 300; ++i) {
    transfers.push_back({i % 2, 1 - i % 2, 300000 + i, i % 3 == 0 ? Fill::normal : Fill::random_bits, i, 0});
  }
  const std::string wrong = batch.exchange(transfers);
  expect(wrong.empty(), "many overflowing messages: " + wrong);
}

// Observations find what the host engine's encode finds.
void observations(codec::Device& device, bool quick) {
  for (const std::uint32_t pool_fraction : {16u, 0u, 1000u}) {
    GpuMachine machine(device);
    auto* observation = static_cast<codec::Observation*>(machine.allocate_mapped(sizeof(codec::Observation)));
    auto* scratch = static_cast<std::uint8_t*>(machine.allocate(codec::encode_scratch_bytes));
    require(device.clear(scratch, codec::encode_scratch_bytes), device, "clear");
    codec::Observation expected{};
    for (const Fill kind : all_fills) {
      for (const std::uint64_t count : {0u, 1u, 1024u, 5555u, 9000000u}) {
        if (count > 1000000 && (quick || kind != Fill::mixture)) continue;
        for (const std::uint64_t offset : {0u, 3u}) {
          const auto values = make_values(kind, count, 3);
          Message message = encode(values, pool_fraction);
          const codec::MessageHeader header = message.header();
          expected.values += count;
          expected.escapes += header.escapes;
          expected.far_escapes += header.far_escapes;
          expected.entry_units += header.entry_units;
          expected.overflow_units +=
              header.entry_units > header.pool_units ? header.entry_units - header.pool_units : 0;
          for (std::uint64_t tile = 0; tile < message.layout().tiles; ++tile) {
            expected.entry_tiles += (message.tail(tile)[1] & 3) != 0;
          }
          ++expected.finished;
          auto* memory = static_cast<std::uint16_t*>(machine.allocate((count + offset + 1) * 2)) + offset;
          machine.upload(memory, values.data(), count * 2);
          codec::ObserveJob job;
          job.values = memory;
          job.count = count;
          job.pool_fraction = pool_fraction;
          job.scratch = scratch;
          job.observation = observation;
          require(machine.run(job), device, "observe");
          machine.finish();
          expect(std::memcmp(observation, &expected, sizeof(expected)) == 0,
                 "observation of kind " + std::to_string(static_cast<int>(kind)) + ", " + std::to_string(count));
          *observation = expected;  // so that each case is judged by itself
        }
      }
    }
    expect(count_other_bytes(scratch, 0, codec::encode_scratch_bytes) == 0, "scratch of observations");
    machine.free_all();
  }
}

void time_observation(codec::Device& device, const Memory& values) {
  const std::uint64_t count = values.size() / sizeof(std::uint16_t);
  const Memory scratch(device, codec::encode_scratch_bytes);
  require(device.clear(scratch.data(), scratch.size()), device, "clear");
  void* mapped = nullptr;
  require(device.allocate_mapped(&mapped, sizeof(codec::Observation)), device, "mapped memory");
  for (const std::uint64_t part : {count / 512, count / 8, count}) {
    const double us = median_microseconds(4, 2, 10, [&](unsigned i, codec::Stream stream) {
      codec::ObserveJob job;
      job.values = values.data() + (part < count ? i % 4 * part * 2 : 0);
      job.count = part;
      job.pool_fraction = 16;
      job.scratch = scratch.data();
      job.observation = static_cast<codec::Observation*>(mapped);
      require(device.observe(job, stream), device, "observe");
    });
    std::printf("observation of %.0f MiB: %.1f us, %.0f GB/s\n", static_cast<double>(part) / (1 << 19), us,
                2e-3 * static_cast<double>(part) / us);
  }
  device.release_mapped(mapped);
}

// Encoding and decoding 64 MiB, as one message and as batches.
void times(codec::Device& device) {
  constexpr std::uint64_t count = std::uint64_t{32} << 20;
  constexpr std::uint32_t pool_fraction = 16;
  constexpr unsigned sets = 8;
  const Values sample = normal_values(std::size_t{1} << 22, 0.02f, 1);
  const Memory source(device, sample.size() * sizeof(std::uint16_t));
  upload(source.data(), sample.data(), source.size());
  const Memory values(device, sets * count * sizeof(std::uint16_t));
  replicate(reinterpret_cast<std::uint16_t*>(values.data()), sets * count,
            reinterpret_cast<const std::uint16_t*>(source.data()), sample.size());
  const std::uint64_t room = Layout::of(count, pool_fraction).static_bytes + 512 * 1024;
  const Memory messages(device, sets * room);
  const Memory outputs(device, sets * count * sizeof(std::uint16_t));
  const Memory scratch(device, codec::encode_scratch_bytes * codec::encode_scratch_messages);
  require(device.clear(scratch.data(), scratch.size()), device, "clear");
  const Memory words(device, 2 * sizeof(std::uint64_t));
  require(device.clear(words.data(), words.size()), device, "clear");
  const Memory overflow_room(device, 4096);
  void* mapped = nullptr;
  constexpr std::uint64_t capacity = 1 << 20;
  constexpr std::uint64_t line = 128;
  require(device.allocate_mapped(&mapped, sizeof(codec::Outbox) + capacity + sizeof(codec::Mailbox) +
                                              overflow_room.size() + sizeof(codec::ExchangeCounters) + line),
          device, "mapped memory");
  auto* outbox = static_cast<codec::Outbox*>(mapped);
  auto* mailbox = reinterpret_cast<codec::Mailbox*>(outbox->data() + capacity);
  auto* counters = reinterpret_cast<codec::ExchangeCounters*>(mailbox->data() + overflow_room.size());
  const auto* release = reinterpret_cast<const std::uint32_t*>(counters + 1);
  for (const std::uint32_t parts : {1u, 8u, 64u, 512u}) {
    const std::uint64_t part = count / parts;
    const std::uint64_t stride = Layout::of(part, pool_fraction).static_bytes;
    for (const bool list : {false, true}) {
      std::vector<codec::EncodeItem> encode_items(parts);
      std::vector<codec::DecodeItem> decode_items(parts);
      const auto encode = [&](unsigned i, codec::Stream stream) {
        std::uint8_t* from = values.data() + i % sets * count * 2;
        std::uint8_t* to = messages.data() + i % sets * room;
        for (std::uint32_t m = 0; m < parts; ++m) encode_items[m] = {from + m * part * 2, part, to + m * stride, 0};
        codec::EncodeJob job;
        if (list) {
          job.items = encode_items.data();
          job.item_count = parts;
          job.message_counter = reinterpret_cast<std::uint64_t*>(words.data());
        } else {
          job.values = from;
          job.value_stride = part * 2;
          job.count = part;
          job.message = to;
          job.message_stride = stride;
          job.message_count = parts;
        }
        job.pool_fraction = pool_fraction;
        job.scratch = scratch.data();
        job.outbox = outbox;
        job.outbox_capacity = capacity;
        job.outbox_lock = reinterpret_cast<std::uint32_t*>(words.data()) + 2;
        job.release = release;
        require(device.encode(job, stream), device, "encode");
      };
      const auto decode = [&](unsigned i, codec::Stream stream) {
        std::uint8_t* from = messages.data() + i % sets * room;
        std::uint8_t* to = outputs.data() + i % sets * count * 2;
        for (std::uint32_t m = 0; m < parts; ++m) decode_items[m] = {from + m * stride, to + m * part * 2, part, 0};
        codec::ReceiveJob job;
        codec::DecodeJob& received = job.decode;
        if (list) {
          received.items = decode_items.data();
          received.item_count = parts;
        } else {
          received.messages = from;
          received.message_stride = stride;
          received.message_count = parts;
          received.values = to;
          received.value_stride = part * 2;
          received.count = part;
        }
        received.pool_fraction = pool_fraction;
        received.any_sequence = true;
        job.mailbox = mailbox;
        job.mailbox_capacity = overflow_room.size();
        job.room = overflow_room.data();
        job.release = release;
        job.counters = counters;
        require(device.receive(job, stream), device, "receive");
      };
      const double encode_us = median_microseconds(sets, 2, 10, encode);
      fill(outputs.data(), 0xA5, outputs.size());
      const double decode_us = median_microseconds(sets, 2, 10, decode);
      const double gigabytes = 2e-9 * static_cast<double>(count);
      std::printf("64 MiB as %3u messages in a %s: encode %.0f, decode %.0f GB/s\n", parts, list ? "list" : "row",
                  gigabytes / encode_us * 1e6, gigabytes / decode_us * 1e6);
      expect(count_differences(outputs.data(), values.data(), outputs.size()) == 0, "timed batch");
    }
  }
  expect(counters->fault() == Status::ok, "status of timed batches");
  device.release_mapped(mapped);
  time_observation(device, values);
}

void run(codec::Device& device, bool quick) {
  rows(device, quick);
  lists(device, quick);
  gathers(device, quick);
  observations(device, quick);
  if (quick) return;
  crowded(device);
  times(device);
}

}  // namespace
}  // namespace zipccl::test

int main(int argc, char** argv) {
  const std::string_view argument = argc > 1 ? argv[1] : "";
  const auto device = zipccl::test::open_device();
  if (device == nullptr) return zipccl::test::skip_exit_code;
  if (argument == "--times") {
    zipccl::test::times(*device);
  } else {
    zipccl::test::run(*device, argument == "--quick");
  }
  std::printf("gpu-batch-test on %s: %d failures\n", device->name(), zipccl::test::failures());
  return zipccl::test::failures() == 0 ? 0 : 1;
}
