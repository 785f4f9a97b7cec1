// The static exchange on one GPU: two ranks of this process, each with streams of its own, whose messages cross by
// device copies and whose overflow crosses through a CPU thread. Arguments: [--quick | --times]. Exit code 77 without a
// GPU.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <string_view>
#include <thread>

#include "codec/format.hpp"
#include "codec/host_engine.hpp"
#include "codec/host_exchange.hpp"
#include "test/gpu/codec_inputs.hpp"
#include "test/gpu/cuda_check.hpp"
#include "test/gpu/exchange_pair.hpp"
#include "test/perf/device_timer.hpp"

namespace zipccl::test {
namespace {

using codec::Layout;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::uint32_t ranks = ExchangePair::ranks;
constexpr int poison = 0xA5;

Memory upload_values(codec::Device& device, const Values& values) {
  Memory memory(device, values.size() * sizeof(std::uint16_t));
  upload(memory.data(), values.data(), memory.size());
  return memory;
}

// Calls of which about `percent` in a hundred overflow, on each rank by its own lot.
void many_calls(codec::Device& device, const ExchangeShape& shape, std::uint64_t calls, unsigned percent) {
  const std::string title = std::to_string(percent) + " % of calls overflowing, capacity " +
                            std::to_string(shape.capacity) + ", " + std::to_string(shape.count) + " values";
  constexpr std::uint64_t most_in_flight = 200;  // outputs to compare after each so many calls
  const std::size_t shard_bytes = shape.count * sizeof(std::uint16_t);
  std::vector<Memory> ordinary, overflowing;
  for (unsigned i = 0; i < 5; ++i) {
    ordinary.push_back(upload_values(device, normal_values(shape.count, 0.02f, i)));
    overflowing.push_back(
        upload_values(device, i % 2 == 0 ? random_bits(shape.count, i) : spread_values(shape.count, 40, i)));
  }
  const Memory outputs(device, most_in_flight * ranks * ranks * shard_bytes);
  ExchangePair pair(device, shape);
  OverflowServer server(pair.senders(), pair.receivers());
  std::mt19937_64 random(percent);
  std::uint64_t wrong = 0;
  std::uint64_t overflows[ranks] = {};  // by sender
  steady_clock::duration spent{};
  for (std::uint64_t first = 0; first < calls; first += most_in_flight) {
    const std::uint64_t batch = std::min(most_in_flight, calls - first);
    std::vector<const std::uint8_t*> sent;
    fill(outputs.data(), poison, outputs.size());
    synchronize();
    const auto begin = steady_clock::now();
    for (std::uint64_t i = 0; i < batch; ++i) {
      const std::uint8_t* inputs[ranks];
      std::uint8_t* values[ranks];
      for (std::uint32_t r = 0; r < ranks; ++r) {
        const bool overflow = random() % 100 < percent;
        overflows[r] += overflow;
        inputs[r] = (overflow ? overflowing : ordinary)[random() % 5].data();
        values[r] = outputs.data() + (i * ranks + r) * ranks * shard_bytes;
        sent.push_back(inputs[r]);
      }
      pair.call(first + i + 1, inputs, values);
    }
    synchronize();
    spent += steady_clock::now() - begin;
    for (std::uint64_t i = 0; i < batch; ++i) {
      for (std::uint32_t r = 0; r < ranks; ++r) {
        const std::uint8_t* shards = outputs.data() + (i * ranks + r) * ranks * shard_bytes;
        wrong += count_differences(shards + (1 - r) * shard_bytes, sent[i * ranks + 1 - r], shard_bytes);
        if (i == 0) wrong += count_other_bytes(shards + r * shard_bytes, poison, shard_bytes);
      }
    }
  }
  expect(wrong == 0, title + ": " + std::to_string(wrong) + " bytes wrong");
  expect(server.drained == overflows[0] + overflows[1] && server.broken == 0, title + ": records");
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const codec::ExchangeCounters& counters = pair.counters(r);
    expect(counters.fault() == Status::ok, title + ": status " + std::to_string(static_cast<int>(counters.fault())));
    expect(counters.finished == calls, title + ": finished");
    expect(counters.values == calls * ranks * shape.count, title + ": values");
    expect(counters.overflow_messages == overflows[0] + overflows[1], title + ": overflow messages");
    expect((counters.overflow_bytes != 0) == (overflows[1 - r] != 0), title + ": overflow bytes");
    expect((counters.wait_ns != 0) == (overflows[1 - r] != 0) && counters.exchange_ns > counters.wait_ns,
           title + ": times");
    expect(count_other_bytes(pair.rank(r).scratch.data(), 0, codec::encode_scratch_bytes) == 0, title + ": scratch");
    expect(count_other_bytes(pair.rank(r).lock.data(), 0, sizeof(std::uint32_t)) == 0, title + ": lock");
  }
  const double a_call = 1.0 / static_cast<double>(calls);
  std::printf("%s: %llu calls, %.0f us each, of which a decode waited %.0f us\n", title.c_str(),
              static_cast<unsigned long long>(calls), a_call * std::chrono::duration<double, std::micro>(spent).count(),
              1e-3 * a_call * static_cast<double>(pair.counters(0).wait_ns));
}

// Every kind of values in one call, both ranks sending the same.
void all_kinds(codec::Device& device, const ExchangeShape& shape, bool quick) {
  const std::size_t shard_bytes = shape.count * sizeof(std::uint16_t);
  const Memory outputs(device, ranks * ranks * shard_bytes);
  ExchangePair pair(device, shape);
  OverflowServer server(pair.senders(), pair.receivers());
  std::uint64_t sequence = 0;
  for (Input& input : all_inputs(shape.count, quick ? 5 : 6)) {
    input.values.resize(shape.count);
    const Memory values = upload_values(device, input.values);
    fill(outputs.data(), poison, outputs.size());
    synchronize();
    pair.call(++sequence, {values.data(), values.data()}, {outputs.data(), outputs.data() + ranks * shard_bytes});
    synchronize();
    expect(count_differences(outputs.data() + shard_bytes, values.data(), shard_bytes) == 0 &&
               count_differences(outputs.data() + ranks * shard_bytes, values.data(), shard_bytes) == 0,
           input.name + " through the static exchange");
  }
  expect(pair.counters(0).fault() == Status::ok && pair.counters(1).fault() == Status::ok, "status of all kinds");
}

// Records are what FORMAT.md says, whatever their pieces: the host engine decodes with them what the GPU has encoded.
void records(codec::Device& device, bool quick) {
  constexpr std::uint64_t sequences = 3;
  for (const std::uint64_t capacity : {2064u, 4096u, 1u << 20}) {
    const ExchangeShape shape{37 * 1024 + 5, 300, capacity};
    const Layout layout = shape.layout();
    for (Input& input : all_inputs(shape.count, 7)) {
      input.values.resize(shape.count);
      ExchangePair pair(device, shape);
      const Memory values = upload_values(device, input.values);
      std::vector<std::uint8_t> message(layout.static_bytes + codec::section_alignment);
      std::uint8_t* const base =
          message.data() +
          (codec::section_alignment - reinterpret_cast<std::uintptr_t>(message.data()) % codec::section_alignment);
      OverflowServer server(pair.senders(), {});
      for (std::uint64_t sequence = 1; sequence <= sequences; ++sequence) {
        pair.encode(0, sequence, values.data(), nullptr);
      }
      synchronize();
      download(base, pair.rank(0).messages.data(), layout.static_bytes);
      const codec::MessageHeader header = pair.header(0);
      const std::uint64_t bytes = layout.overflow_bytes(header.entry_units);
      const std::uint64_t expected = bytes == 0 ? 0 : sequences;
      while (server.drained != expected && server.broken == 0) std::this_thread::yield();
      expect(server.broken == 0, input.name + ": pieces");
      if (bytes == 0) continue;
      const auto record = server.records().back();
      expect(record.sequence == sequences && record.receiver == codec::all_receivers, input.name + ": record's name");
      expect(record.bytes.size() == bytes, input.name + ": record's size");
      std::vector<std::uint8_t> overflow(bytes + 16);
      std::uint8_t* const units = overflow.data() + (16 - reinterpret_cast<std::uintptr_t>(overflow.data()) % 16) % 16;
      std::memcpy(units, record.bytes.data(), bytes);
      Values decoded(shape.count, 0x5AA5);
      codec::MessageSummary summary{};
      codec::DecodeJob job;
      job.messages = base;
      job.message_count = 1;
      job.values = decoded.data();
      job.count = shape.count;
      job.pool_fraction = shape.pool_fraction;
      job.sequence = sequences;
      job.summaries = &summary;
      using Engine = codec::HostEngine<codec::Bf16Traits>;
      require(Engine::decode(job) == Status::ok, "host decode");
      job.overflow = units;
      job.overflow_step = bytes;
      job.overflow_size = bytes;
      require(Engine::decode(job) == Status::ok, "host patch");
      expect(summary.status == 0 && decoded == input.values, input.name + ": record");
    }
    if (quick) break;
  }
}

// Jobs that are replayed as they are count their sequences on the device.
void counted_sequences(codec::Device& device, const ExchangeShape& shape) {
  const std::size_t shard_bytes = shape.count * sizeof(std::uint16_t);
  const Memory values = upload_values(device, random_bits(shape.count, 4));
  const Memory outputs(device, ranks * ranks * shard_bytes);
  ExchangePair pair(device, shape);
  OverflowServer server(pair.senders(), pair.receivers());
  Memory counters[ranks];
  for (std::uint32_t r = 0; r < ranks; ++r) {
    counters[r] = Memory(device, sizeof(std::uint64_t));
    require(device.clear(counters[r].data(), sizeof(std::uint64_t)), device, "clear");
    pair.rank(r).counter = reinterpret_cast<std::uint64_t*>(counters[r].data());
  }
  constexpr std::uint64_t replays = 5;
  for (std::uint64_t replay = 0; replay < replays; ++replay) {
    fill(outputs.data(), poison, outputs.size());
    synchronize();
    pair.call(7, {values.data(), values.data()}, {outputs.data(), outputs.data() + ranks * shard_bytes});
    synchronize();
    expect(pair.header(0).sequence == 7 + replay, "sequence of a replay");
    expect(count_differences(outputs.data() + shard_bytes, values.data(), shard_bytes) == 0 &&
               count_differences(outputs.data() + ranks * shard_bytes, values.data(), shard_bytes) == 0,
           "values of a replay");
  }
  for (std::uint32_t r = 0; r < ranks; ++r) {
    std::uint64_t count = 0;
    download(&count, counters[r].data(), sizeof(count));
    expect(count == replays && pair.counters(r).fault() == Status::ok, "counted sequences");
  }
}

bool is_done(cudaStream_t stream) {
  const cudaError_t error = cudaStreamQuery(stream);
  if (error != cudaErrorNotReady) check(error);
  return error == cudaSuccess;
}

bool done_within(cudaStream_t stream, milliseconds limit) {
  const auto end = steady_clock::now() + limit;
  while (!is_done(stream)) {
    if (steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

// Launches return while kernels wait; the kernels end when the CPU thread goes on, or by a release. Large values have
// records of several pieces.
void waiting_kernels(codec::Device& device, const ExchangeShape& shape, bool release) {
  const std::string title = (release ? "released while waiting, " : "held up, ") + std::to_string(shape.count);
  const std::size_t shard_bytes = shape.count * sizeof(std::uint16_t);
  const Memory values = upload_values(device, random_bits(shape.count, 9));
  const Memory outputs(device, ranks * ranks * shard_bytes);
  const Memory elsewhere(device, shard_bytes);
  const Memory message(device, shape.layout().static_bytes);
  const Memory scratch(device, codec::encode_scratch_bytes);
  require(device.clear(scratch.data(), scratch.size()), device, "clear");
  fill(outputs.data(), poison, outputs.size());
  synchronize();
  ExchangePair pair(device, shape);
  OverflowServer server(pair.senders(), pair.receivers());
  server.hold_answers = true;
  server.hold_drains = true;
  cudaStream_t other = nullptr;
  check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));

  // The first call's decodes wait for an answer, or its encodes for a piece to be taken; rank 0's next encode, on a
  // stream that nothing orders, for its turn.
  pair.call(1, {values.data(), values.data()}, {outputs.data(), outputs.data() + ranks * shard_bytes});
  ExchangeRank& first = pair.rank(0);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    while (codec::load_acquire(pair.rank(r).outbox.as<codec::Outbox>()->posted) == 0) std::this_thread::yield();
  }
  codec::EncodeJob next = pair.encode_job(0, 2, values.data());
  next.message = message.data();
  next.scratch = scratch.data();
  require(device.encode(next, first.streams[2]), device, "encode");
  std::this_thread::sleep_for(milliseconds(100));
  expect(!is_done(first.streams[1]) && !is_done(first.streams[2]), title + ": kernels do not wait");
  require(device.copy(elsewhere.data(), values.data(), shard_bytes, other), device, "copy");
  expect(done_within(other, milliseconds(1000)), title + ": other streams wait too");
  const codec::Outbox& outbox = *first.outbox.as<codec::Outbox>();
  expect(codec::load_acquire(outbox.posted) == 1, title + ": posted before taken");

  if (release) {
    for (std::uint32_t r = 0; r < ranks; ++r) codec::store_release(*pair.rank(r).release.as<std::uint32_t>(), 1u);
  } else {
    server.hold_answers = false;
    server.hold_drains = false;
  }
  for (std::uint32_t r = 0; r < ranks; ++r) {
    for (cudaStream_t stream : pair.rank(r).streams) {
      expect(done_within(stream, milliseconds(release ? 50 : 2000)), title + ": a kernel does not end");
    }
  }
  synchronize();
  for (const std::uint8_t* counters : {first.scratch.data(), scratch.data()}) {
    expect(count_other_bytes(counters, 0, codec::encode_scratch_bytes) == 0, title + ": scratch");
  }
  const std::uint64_t bytes = shape.layout().overflow_bytes(pair.header(0).entry_units);
  const std::uint64_t pieces = (bytes + shape.capacity - 1) / shape.capacity;
  expect(codec::load_acquire(outbox.posted) == (release ? 1 : 2 * pieces), title + ": posted");
  expect(count_other_bytes(first.lock.data(), 0, sizeof(std::uint32_t)) == 0, title + ": lock");
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const auto status = pair.counters(r).fault();
    expect(status == (release ? Status::aborted : Status::ok), title + ": status");
    expect(pair.counters(r).finished == 1, title + ": finished");
  }
  if (!release) {
    expect(count_differences(outputs.data() + shard_bytes, values.data(), shard_bytes) == 0, title + ": values");
  }
  check(cudaStreamDestroy(other));
}

// What a receive job does that cannot get what it needs. Rank 0 receives.
void faults(codec::Device& device, const ExchangeShape& shape) {
  const std::size_t shard_bytes = shape.count * sizeof(std::uint16_t);
  const Memory values = upload_values(device, random_bits(shape.count, 10));
  const Memory outputs(device, ranks * ranks * shard_bytes);
  constexpr std::uint64_t later = 3;
  const auto run = [&](const std::string& what, Status expected, auto arrange, std::uint64_t good_answers = 0) {
    ExchangePair pair(device, shape);
    OverflowServer server(pair.senders(), pair.receivers());
    server.good_answers = good_answers;
    fill(outputs.data(), poison, outputs.size());
    for (std::uint32_t r = 0; r < ranks; ++r) pair.encode(r, 1, values.data(), pair.rank(0).streams[0]);
    pair.exchange(0, pair.rank(0).streams[0]);
    synchronize();
    arrange(pair, server);
    pair.receive(0, 1, outputs.data(), pair.rank(0).streams[0]);
    synchronize();
    const codec::ExchangeCounters& counters = pair.counters(0);
    expect(counters.fault() == expected, what + ": status " + std::to_string(static_cast<int>(counters.fault())));
    expect(counters.finished == 1, what + ": finished");
    expect(count_other_bytes(outputs.data(), poison, shard_bytes) == 0, what + ": the own shard");
    const std::uint64_t asked = codec::load_acquire(pair.rank(0).mailbox.as<codec::Mailbox>()->ticket);
    expect(server.answered == asked - (expected == Status::aborted ? 1 : 0), what + ": answers");
    const bool ended =
        expected == Status::connection_lost || expected == Status::bad_totals || expected == Status::aborted;
    expect(!ended || asked == good_answers + 1, what + ": " + std::to_string(asked) + " requests");
  };
  const Layout layout = shape.layout();
  const auto change = [&](ExchangePair& pair, std::uint32_t sender, std::uint64_t offset, std::uint32_t word) {
    upload(pair.rank(0).messages.data() + sender * layout.static_bytes + offset, &word, sizeof(word));
  };
  const std::uint64_t second_tail = layout.tails + codec::tail_bytes;
  run("no fault", Status::ok, [](ExchangePair&, OverflowServer&) {});
  run("lost", Status::connection_lost, [](ExchangePair&, OverflowServer& server) { server.lost_sender = 1; });
  run(
      "lost later", Status::connection_lost, [](ExchangePair&, OverflowServer& server) { server.lost_sender = 1; },
      later);
  run(
      "another record later", Status::bad_totals,
      [](ExchangePair&, OverflowServer& server) { server.wrong_record = 16; }, later);
  run(
      "another piece later", Status::bad_totals, [](ExchangePair&, OverflowServer& server) { server.wrong_piece = 16; },
      later);
  std::thread releasing;
  run(
      "released later", Status::aborted,
      [&](ExchangePair& pair, OverflowServer& server) {
        server.hold_answers = true;
        releasing = std::thread([&pair] {
          std::this_thread::sleep_for(milliseconds(50));
          codec::store_release(*pair.rank(0).release.as<std::uint32_t>(), 1u);
        });
      },
      later);
  releasing.join();  // the job has ended by its doing
  run("another record", Status::bad_totals, [](ExchangePair&, OverflowServer& server) { server.wrong_record = 16; });
  run("another piece", Status::bad_totals, [](ExchangePair&, OverflowServer& server) { server.wrong_piece = 16; });
  run("bad header", Status::bad_magic, [&](ExchangePair& pair, OverflowServer&) { change(pair, 1, 0, 1); });
  run("bad own header", Status::bad_magic, [&](ExchangePair& pair, OverflowServer&) { change(pair, 0, 0, 1); });
  run("bad tile", Status::bad_tile, [&](ExchangePair& pair, OverflowServer&) { change(pair, 1, second_tail, 0x02ff); });
  run("entry beyond the record", Status::bad_tile, [&](ExchangePair& pair, OverflowServer&) {
    change(pair, 1, second_tail + codec::tail_bytes - 4, static_cast<std::uint32_t>(pair.header(1).entry_units) - 1);
  });
  run("entry far beyond the record", Status::bad_tile,
      [&](ExchangePair& pair, OverflowServer&) { change(pair, 1, second_tail + codec::tail_bytes - 4, ~0u); });
}

// What headers and counting add to the decoding of an ordinary call's messages.
void time_receive(codec::Device& device) {
  constexpr unsigned launches = 100;
  const ExchangeShape shape{16 * 1024, 256, 1 << 20};
  const Layout layout = shape.layout();
  const Memory values = upload_values(device, normal_values(shape.count, 0.02f, 1));
  ExchangePair pair(device, shape);
  pair.encode(0, 1, values.data(), nullptr);
  synchronize();
  constexpr std::uint32_t most = 64;
  const Memory row(device, most * layout.static_bytes);
  const Memory outputs(device, most * shape.count * sizeof(std::uint16_t));
  for (std::uint32_t m = 0; m < most; ++m) {
    require(
        device.copy(row.data() + m * layout.static_bytes, pair.rank(0).messages.data(), layout.static_bytes, nullptr),
        device, "copy");
  }
  synchronize();
  codec::ReceiveJob job = pair.receive_job(0, 1, outputs.data());
  job.decode.messages = row.data();
  job.decode.skip = ~0u;
  const auto time = [&](auto work) {
    return median_microseconds(launches, 2, 10, [&](unsigned, codec::Stream stream) { work(stream); });
  };
  for (const std::uint32_t messages : {2u, 8u, 64u}) {
    job.decode.message_count = messages;
    const double decode =
        time([&](codec::Stream stream) { require(device.decode(job.decode, stream), device, "decode"); });
    const double receive = time([&](codec::Stream stream) { require(device.receive(job, stream), device, "receive"); });
    std::printf("%2u messages of %llu values: their first pass alone %.2f us, received %.2f us\n", messages,
                static_cast<unsigned long long>(shape.count), decode, receive);
  }
  expect(pair.counters(0).fault() == Status::ok, "timed jobs");
}

void time_overflow(codec::Device& device) {
  const ExchangeShape shape{4 << 20, 0, 1 << 20};
  const std::size_t shard_bytes = shape.count * sizeof(std::uint16_t);
  const Memory values = upload_values(device, random_bits(shape.count, 3));
  const Memory outputs(device, ranks * shard_bytes);
  ExchangePair pair(device, shape);
  OverflowServer server(pair.senders(), pair.receivers());
  pair.encode(1, 1, values.data(), nullptr);
  pair.exchange(0, nullptr);
  pair.encode(0, 1, values.data(), nullptr);
  synchronize();
  const double us = median_microseconds(1, 1, 5, [&](unsigned, codec::Stream stream) {
    require(device.receive(pair.receive_job(0, 1, outputs.data()), stream), device, "receive");
  });
  const codec::ExchangeCounters& counters = pair.counters(0);
  std::printf("8 MiB of random bits: received in %.0f us, of which %.0f us waiting for the CPU thread\n", us,
              1e-3 * static_cast<double>(counters.wait_ns) / 6);
  expect(counters.fault() == Status::ok &&
             count_differences(outputs.data() + shard_bytes, values.data(), shard_bytes) == 0,
         "8 MiB of random bits");
}

// An encode beside a receive job of two ranks' messages, of which one is the own, and one after the other.
void time_beside(codec::Device& device) {
  constexpr unsigned launches = 50;
  for (const std::uint64_t count : {std::uint64_t{1} << 17, std::uint64_t{1} << 20, std::uint64_t{1} << 23}) {
    const ExchangeShape shape{count, 16, 1 << 20};
    const std::size_t shard_bytes = count * sizeof(std::uint16_t);
    const Memory values = upload_values(device, normal_values(count, 0.02f, 1));
    const Memory outputs(device, ranks * shard_bytes);
    const Memory message(device, shape.layout().static_bytes);
    ExchangePair pair(device, shape);
    for (std::uint32_t r = 0; r < ranks; ++r) pair.encode(r, 1, values.data(), nullptr);
    pair.exchange(0, nullptr);
    synchronize();
    codec::EncodeJob encode = pair.encode_job(0, 2, values.data());
    encode.message = message.data();
    encode.started_ns = nullptr;  // the receive job reads it
    const codec::ReceiveJob receive = pair.receive_job(0, 1, outputs.data());
    for (int round = 0; round < 2; ++round) {
      const double apart = median_microseconds(launches, 2, 10, [&](unsigned, codec::Stream stream) {
        require(device.encode(encode, stream), device, "encode");
        require(device.receive(receive, stream), device, "receive");
      });
      const double beside = median_microseconds(launches, 2, 10, [&](unsigned, codec::Stream stream) {
        require(device.encode_and_receive(encode, receive, stream), device, "encode and receive");
      });
      std::printf("%zu KiB encoded and received: one after the other %.2f us, in one launch %.2f us\n",
                  shard_bytes / 1024, apart, beside);
    }
    expect(pair.counters(0).fault() == Status::ok &&
               count_differences(outputs.data() + shard_bytes, values.data(), shard_bytes) == 0,
           "timed jobs beside each other");
  }
}

void times(codec::Device& device) {
  time_receive(device);
  time_beside(device);
  time_overflow(device);
}

void run(codec::Device& device, bool quick) {
  all_kinds(device, {20 * 1024 + 77, 4, 4096}, quick);
  all_kinds(device, {3 * 1024 + 1, 0, 1040}, quick);
  records(device, quick);
  faults(device, {5 * 1024, 0, 1040});
  counted_sequences(device, {5 * 1024 + 3, 0, 4096});
  for (const unsigned percent : {0u, 1u, 10u, 100u}) {
    many_calls(device, {20 * 1024 + 6, 16, 8192}, quick ? 9 : 2000, percent);
  }
  if (quick) return;  // memory checkers may make launches wait, and have no business with times
  many_calls(device, {512 * 1024, 64, 1 << 20}, 60, 100);
  for (const bool release : {false, true}) {
    waiting_kernels(device, {20 * 1024, 0, 1 << 20}, release);
    waiting_kernels(device, {16 << 20, 0, 1 << 20}, release);
  }
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
  std::printf("gpu-overflow-test on %s: %d failures\n", device->name(), zipccl::test::failures());
  return zipccl::test::failures() == 0 ? 0 : 1;
}
