#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codec/host_device.hpp"
#include "codec/overflow.hpp"
#include "test/unit/catch.hpp"
#include "test/unit/codec_messages.hpp"

namespace zipccl::test {
namespace {

// A runtime whose streams only run when someone waits for them, so that tests see what is enqueued and what has run.
struct FakeRuntime {
  struct FakeEvent {
    int pending = 0;
  };
  std::map<CUstream_st*, std::deque<std::function<void()>>> streams;
  std::vector<std::function<void()>> graph;     // instead of the streams while `capture` is not none
  std::vector<std::function<void()>> releases;  // of what the graph owns
  int capture = ZIPCCL_CAPTURE_NONE;
  std::vector<std::string> external;  // calls for external events
  int failure = 0;                    // what every function returns
  int allocations = 0;
  int synchronizations = 0;

  void run_all() {
    for (auto& [stream, work] : streams) {
      while (!work.empty()) {
        const auto next = std::move(work.front());
        work.pop_front();
        next();
      }
    }
  }
};

FakeRuntime fake;

zipccl_host_runtime_v1 make_runtime() {
  zipccl_host_runtime_v1 runtime{};
  runtime.version = ZIPCCL_HOST_RUNTIME_VERSION;
  runtime.size = sizeof(runtime);
  runtime.allocate = [](void** pointer, std::size_t bytes) {
    if (fake.failure != 0) {
      return fake.failure;
    }
    *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(*pointer, 0xEE, bytes);
    ++fake.allocations;
    return 0;
  };
  runtime.release = [](void* pointer) {
    std::free(pointer);
    --fake.allocations;
    return 0;
  };
  runtime.stream_enqueue = [](CUstream_st* stream, void (*function)(void*), void* argument) {
    if (fake.failure == 0) {
      fake.streams[stream].push_back([=] { function(argument); });
    }
    return fake.failure;
  };
  runtime.event_create = [](void** event) {
    *event = new FakeRuntime::FakeEvent;
    return fake.failure;
  };
  runtime.event_destroy = [](void* event) {
    delete static_cast<FakeRuntime::FakeEvent*>(event);
    return fake.failure;
  };
  runtime.event_record = [](void* event, CUstream_st* stream) {
    auto* fake_event = static_cast<FakeRuntime::FakeEvent*>(event);
    if (fake.failure != 0) {
      return fake.failure;
    }
    ++fake_event->pending;
    fake.streams[stream].push_back([=] { --fake_event->pending; });
    return 0;
  };
  runtime.event_query = [](void* event, int* done) {
    *done = static_cast<FakeRuntime::FakeEvent*>(event)->pending == 0;
    return fake.failure;
  };
  runtime.stream_wait_event = [](CUstream_st*, void*) { return fake.failure; };
  runtime.stream_create = [](CUstream_st** stream) {
    *stream = reinterpret_cast<CUstream_st*>(std::uintptr_t{77});
    return fake.failure;
  };
  runtime.stream_destroy = [](CUstream_st* stream) {
    fake.streams.erase(stream);
    return fake.failure;
  };
  runtime.stream_enqueue_owned = [](CUstream_st* stream, void (*function)(void*), void (*release)(void*),
                                    void* argument) {
    if (fake.failure != 0) {
      return fake.failure;
    }
    if (fake.capture != ZIPCCL_CAPTURE_NONE) {
      fake.graph.push_back([=] { function(argument); });
      fake.releases.push_back([=] { release(argument); });
    } else {
      fake.streams[stream].push_back([=] {
        function(argument);
        release(argument);
      });
    }
    return 0;
  };
  runtime.stream_capture_id = [](CUstream_st*, unsigned long long* id) {
    *id = fake.capture == ZIPCCL_CAPTURE_ACTIVE ? 5 : 0;
    return fake.capture == ZIPCCL_CAPTURE_INVALIDATED ? 1 : fake.failure;
  };
  runtime.event_record_external = [](void*, CUstream_st*) {
    fake.external.emplace_back("record");
    return fake.failure;
  };
  runtime.stream_wait_event_external = [](CUstream_st*, void*) {
    fake.external.emplace_back("wait");
    return fake.failure;
  };
  runtime.device_synchronize = [] {
    ++fake.synchronizations;
    if (fake.failure == 0) {
      fake.run_all();
    }
    return fake.failure;
  };
  return runtime;
}

const zipccl_host_runtime_v1 runtime = make_runtime();

std::unique_ptr<codec::HostDevice> make_device() {
  fake = {};
  std::unique_ptr<codec::HostDevice> device;
  REQUIRE(codec::HostDevice::create(&runtime, &device) == Status::ok);
  return device;
}

CUstream_st* stream_of(std::uintptr_t number) { return reinterpret_cast<CUstream_st*>(number); }

}  // namespace

TEST_CASE("runtimes of another version are refused") {
  std::unique_ptr<codec::HostDevice> device;
  auto other = runtime;
  other.version = 2;
  CHECK(codec::HostDevice::create(&other, &device) == Status::unsupported);
  other = runtime;
  other.size = 8;
  CHECK(codec::HostDevice::create(&other, &device) == Status::unsupported);
  CHECK(codec::HostDevice::create(nullptr, &device) == Status::unsupported);
  CHECK(device == nullptr);
}

TEST_CASE("what a host device says of itself") {
  const auto device = make_device();
  CHECK(device->ordinal() == 0);
  CHECK(std::string(device->name()) == "host");
  CHECK(device->total_memory() > 64u << 20);
  std::uint64_t capture = 1;
  CHECK(device->capture(stream_of(1), &capture) == Status::ok);
  CHECK(capture == 0);
  fake.capture = ZIPCCL_CAPTURE_ACTIVE;
  CHECK(device->capture(stream_of(1), &capture) == Status::ok);
  CHECK(capture == 5);
  fake.capture = ZIPCCL_CAPTURE_INVALIDATED;
  CHECK(device->capture(stream_of(1), &capture) == Status::device_error);
}

TEST_CASE("memory") {
  const auto device = make_device();
  void* plain = nullptr;
  void* mapped = nullptr;
  REQUIRE(device->allocate(&plain, 1000) == Status::ok);
  REQUIRE(device->allocate_mapped(&mapped, 1000) == Status::ok);
  const auto is_zero = [](const void* pointer) {
    const auto* bytes = static_cast<const std::uint8_t*>(pointer);
    return std::all_of(bytes, bytes + 1000, [](std::uint8_t byte) { return byte == 0; });
  };
  CHECK(is_zero(mapped));
  CHECK_FALSE(is_zero(plain));
  CHECK(device->clear(plain, 1000) == Status::ok);
  CHECK(is_zero(plain));
  device->release(plain);
  device->release_mapped(mapped);
  CHECK(fake.allocations == 0);
  fake.failure = 2;
  CHECK(device->allocate(&plain, 1000) == Status::out_of_memory);
}

TEST_CASE("work runs on its stream, after the call, from a copy of the job") {
  const auto device = make_device();
  const auto values = make_values(Fill::mixture, 5000, 3);
  const auto layout = codec::Layout::of(values.size(), codec::max_pool_fraction);
  Block message(layout.static_bytes);
  std::vector<std::uint16_t> copied(values.size());
  std::vector<std::uint16_t> out(values.size());
  std::vector<std::uint16_t> received(values.size());
  codec::MessageSummary summary{};
  codec::ExchangeCounters counters{};
  {
    REQUIRE(device->copy(copied.data(), values.data(), values.size() * 2, stream_of(1)) == Status::ok);
    codec::EncodeJob job;
    job.values = copied.data();
    job.count = values.size();
    job.pool_fraction = codec::max_pool_fraction;
    job.message = message.data();
    job.sequence = 4;
    REQUIRE(device->encode(job, stream_of(1)) == Status::ok);
    job = {};
    codec::DecodeJob decode_job;
    decode_job.messages = message.data();
    decode_job.message_count = 1;
    decode_job.values = out.data();
    decode_job.count = values.size();
    decode_job.pool_fraction = codec::max_pool_fraction;
    decode_job.sequence = 4;
    decode_job.summaries = &summary;
    REQUIRE(device->decode(decode_job, stream_of(1)) == Status::ok);
    codec::ReceiveJob receive_job;
    receive_job.decode = decode_job;
    receive_job.decode.values = received.data();
    receive_job.decode.pool_fraction = 0;
    CHECK(device->receive(receive_job, stream_of(1)) == Status::invalid_argument);
    receive_job.decode.pool_fraction = codec::max_pool_fraction;
    receive_job.counters = &counters;
    REQUIRE(device->receive(receive_job, stream_of(1)) == Status::ok);
    receive_job = {};
    decode_job = {};
  }
  CHECK(fake.streams.at(stream_of(1)).size() == 4);
  CHECK(counters.finished == 0);
  CHECK(out == std::vector<std::uint16_t>(values.size()));
  CHECK(received == out);
  REQUIRE(device->synchronize() == Status::ok);
  CHECK(out == values);
  CHECK(received == values);
  CHECK(summary.status == 0);
  CHECK(summary.escapes > 0);
  CHECK(counters.finished == 1);
  CHECK(counters.escapes == summary.escapes);
}

TEST_CASE("lists are copied with their jobs") {
  const auto device = make_device();
  constexpr std::uint64_t count = 3000;
  constexpr std::size_t messages = 3;
  std::vector<std::vector<std::uint16_t>> values;
  std::vector<std::vector<std::uint16_t>> out(messages, std::vector<std::uint16_t>(count));
  std::vector<Block> bytes;
  codec::ExchangeCounters counters{};
  codec::Observation observation{};
  for (int round = 0; round < 2; ++round) {  // the second with jobs that have held lists before
    values.clear();
    bytes.clear();
    std::vector<codec::EncodeItem> encodes;
    std::vector<codec::DecodeItem> decodes;
    for (std::size_t m = 0; m < messages; ++m) {
      values.push_back(make_values(Fill::mixture, count, m));
      bytes.emplace_back(codec::Layout::of(count, codec::max_pool_fraction).static_bytes);
      encodes.push_back({values[m].data(), count, bytes[m].data(), 1});
      decodes.push_back({bytes[m].data(), out[m].data(), count, 0});
    }
    codec::EncodeJob encode_job;
    encode_job.items = encodes.data();
    encode_job.item_count = messages;
    encode_job.pool_fraction = codec::max_pool_fraction;
    codec::ReceiveJob receive_job;
    receive_job.decode.items = decodes.data();
    receive_job.decode.item_count = messages;
    receive_job.decode.pool_fraction = codec::max_pool_fraction;
    receive_job.counters = &counters;
    codec::ObserveJob observe_job;
    observe_job.values = values[0].data();
    observe_job.count = count;
    observe_job.observation = &observation;
    REQUIRE(device->encode(encode_job, stream_of(1)) == Status::ok);
    REQUIRE(device->receive(receive_job, stream_of(1)) == Status::ok);
    REQUIRE(device->observe(observe_job, stream_of(1)) == Status::ok);
    encodes.assign(messages, {});
    decodes.assign(messages, {});
    REQUIRE(device->synchronize() == Status::ok);
    CHECK(out == values);
    CHECK(counters.fault() == Status::ok);
    CHECK(counters.values == (round + 1) * messages * count);
    CHECK(observation.finished == static_cast<std::uint64_t>(round + 1));
    for (auto& shard : out) {
      std::fill(shard.begin(), shard.end(), std::uint16_t{0});
    }
  }
}

TEST_CASE("an encode and a receive are one piece of work, from copies of both jobs") {
  const auto device = make_device();
  constexpr std::uint64_t count = 3000;
  const std::uint64_t bytes = codec::Layout::of(count, codec::max_pool_fraction).static_bytes;
  const auto earlier = make_values(Fill::mixture, count, 1);
  const auto later = make_values(Fill::random_bits, count, 2);
  Message arrived = encode(earlier, codec::max_pool_fraction);
  const Message expected = encode(later, codec::max_pool_fraction);
  for (const bool lists : {false, true}) {
    Block message(bytes);
    std::vector<std::uint16_t> out(count, untouched);
    codec::ExchangeCounters counters{};
    codec::EncodeItem sent{later.data(), count, message.data(), codec::all_receivers};
    codec::DecodeItem received{arrived.bytes.data(), out.data(), count, 0};
    codec::EncodeJob encode_job;
    encode_job.values = sent.values;
    encode_job.count = count;
    encode_job.pool_fraction = codec::max_pool_fraction;
    encode_job.message = message.data();
    encode_job.sequence = 1;
    codec::ReceiveJob receive_job;
    receive_job.decode.messages = arrived.bytes.data();
    receive_job.decode.message_count = 1;
    receive_job.decode.values = out.data();
    receive_job.decode.count = count;
    receive_job.decode.pool_fraction = codec::max_pool_fraction;
    receive_job.decode.sequence = 1;
    receive_job.counters = &counters;
    if (lists) {
      encode_job.items = &sent;
      encode_job.item_count = 1;
      receive_job.decode.items = &received;
      receive_job.decode.item_count = 1;
    }
    REQUIRE(device->encode_and_receive(encode_job, receive_job, stream_of(1)) == Status::ok);
    sent = {};
    received = {};
    CHECK(fake.streams.at(stream_of(1)).size() == 1);
    CHECK(out == std::vector<std::uint16_t>(count, untouched));
    REQUIRE(device->synchronize() == Status::ok);
    CHECK(out == earlier);
    CHECK(std::memcmp(message.data(), expected.bytes.data(), bytes) == 0);
    CHECK(counters.finished == 1);
    CHECK(counters.fault() == Status::ok);
    receive_job.counters = nullptr;
    CHECK(device->encode_and_receive(encode_job, receive_job, stream_of(1)) == Status::invalid_argument);
    CHECK(device->encode_and_receive({}, receive_job, stream_of(1)) == Status::invalid_argument);
    CHECK(fake.streams.at(stream_of(1)).empty());
  }
}

TEST_CASE("more jobs in flight than the free list holds, more than once") {
  const auto device = make_device();
  constexpr std::size_t jobs = 3 * codec::HostDevice::first_jobs;
  for (int round = 0; round < 2; ++round) {
    std::vector<int> from(jobs);
    std::vector<int> to(jobs, -1);
    for (std::size_t i = 0; i < jobs; ++i) {
      from[i] = static_cast<int>(i);
      REQUIRE(device->copy(&to[i], &from[i], sizeof(int), stream_of(1 + i % 3)) == Status::ok);
    }
    REQUIRE(device->synchronize() == Status::ok);
    CHECK(from == to);
  }
}

TEST_CASE("captured jobs run as often as their graph is launched, and are its own until it goes") {
  const auto device = make_device();
  int from = 0;
  int to = 0;
  fake.capture = ZIPCCL_CAPTURE_ACTIVE;
  REQUIRE(device->copy(&to, &from, sizeof(int), stream_of(1)) == Status::ok);
  fake.capture = ZIPCCL_CAPTURE_NONE;
  for (int launch = 1; launch <= 3; ++launch) {
    from = launch;
    for (const auto& work : fake.graph) {
      work();
    }
    CHECK(to == launch);
    // As many others as make the device use every job that it believes to be free.
    std::vector<int> copies(2 * codec::HostDevice::first_jobs);
    for (int& copy : copies) {
      REQUIRE(device->copy(&copy, &from, sizeof(int), stream_of(1)) == Status::ok);
    }
    REQUIRE(device->synchronize() == Status::ok);
    CHECK(copies == std::vector<int>(copies.size(), launch));
  }
  for (const auto& release : fake.releases) {
    release();
  }
}

TEST_CASE("a device that goes waits for its work") {
  auto device = make_device();
  int from = 5;
  int to = 0;
  REQUIRE(device->copy(&to, &from, sizeof(int), stream_of(1)) == Status::ok);
  CHECK(to == 0);
  device.reset();
  CHECK(to == 5);
}

TEST_CASE("bad jobs are refused before anything is enqueued") {
  const auto device = make_device();
  codec::EncodeJob encode_job;
  CHECK(device->encode(encode_job, stream_of(1)) == Status::invalid_argument);
  codec::DecodeJob decode_job;
  decode_job.message_count = 1;
  CHECK(device->decode(decode_job, stream_of(1)) == Status::invalid_argument);
  CHECK(fake.streams.empty());
}

TEST_CASE("events") {
  const auto device = make_device();
  codec::Event event = nullptr;
  REQUIRE(device->create_event(&event) == Status::ok);
  bool done = false;
  CHECK(device->query(event, &done) == Status::ok);
  CHECK(done);
  CHECK(device->record(event, stream_of(1)) == Status::ok);
  CHECK(device->query(event, &done) == Status::ok);
  CHECK_FALSE(done);
  CHECK(device->wait(event, stream_of(2)) == Status::ok);
  CHECK(device->synchronize() == Status::ok);
  CHECK(device->query(event, &done) == Status::ok);
  CHECK(done);
  CHECK(device->record_external(event, stream_of(1)) == Status::ok);
  CHECK(device->wait_external(event, stream_of(2)) == Status::ok);
  CHECK(fake.external == std::vector<std::string>{"record", "wait"});
  device->destroy_event(event);
}

TEST_CASE("streams of one's own") {
  const auto device = make_device();
  codec::Stream stream = nullptr;
  REQUIRE(device->create_stream(&stream, 0) == Status::ok);
  REQUIRE(stream != nullptr);
  int from = 3;
  int to = 0;
  REQUIRE(device->copy(&to, &from, sizeof(int), stream) == Status::ok);
  REQUIRE(device->synchronize() == Status::ok);
  CHECK(to == 3);
  device->destroy_stream(stream);
  CHECK(fake.streams.empty());
}

TEST_CASE("a failing runtime is a device error with a text") {
  auto device = make_device();
  int word = 0;
  fake.failure = 7;
  CHECK(device->copy(&word, &word, sizeof(word), stream_of(1)) == Status::device_error);
  CHECK(std::string(device->last_error()) == "host runtime: stream_enqueue_owned returned 7");
  CHECK(device->synchronize() == Status::device_error);
  CHECK(std::string(device->last_error()) == "host runtime: device_synchronize returned 7");
  bool done = false;
  FakeRuntime::FakeEvent event;
  CHECK(device->query(&event, &done) == Status::device_error);
  CHECK(device->record(&event, stream_of(1)) == Status::device_error);
  CHECK(device->wait(&event, stream_of(1)) == Status::device_error);
  CHECK(device->record_external(&event, stream_of(1)) == Status::device_error);
  CHECK(device->wait_external(&event, stream_of(1)) == Status::device_error);
  std::uint64_t capture = 0;
  CHECK(device->capture(stream_of(1), &capture) == Status::device_error);
  codec::Stream stream = nullptr;
  CHECK(device->create_stream(&stream, 0) == Status::device_error);
  fake.failure = 0;
  // Nothing that failed was left in flight, for which a device that goes would wait.
  fake.synchronizations = 0;
  device.reset();
  CHECK(fake.synchronizations == 0);
}

}  // namespace zipccl::test
