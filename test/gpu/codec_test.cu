// The CUDA engine against the host engine: values through one and back through the other, on the device compared byte
// by byte. Arguments: [--huge] [--quick] [DIRECTORY with recorded *.bf16]. Exit code 77 without a GPU.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <string_view>
#include <thread>

#include "codec/cuda/cuda_device.hpp"
#include "codec/format.hpp"
#include "codec/host_engine.hpp"
#include "test/gpu/codec_inputs.hpp"
#include "test/gpu/device_fixture.hpp"

namespace zipccl::test {
namespace {

using codec::Layout;
using codec::MessageHeader;
using codec::MessageSummary;
using HostEngine = codec::HostEngine<codec::Bf16Traits>;

constexpr int poison = 0xA5;
constexpr std::uint64_t test_sequence = 0x123456789abcdefull;
constexpr std::uint32_t test_chunk = 7;
constexpr std::uint64_t piece_step = 5 * 1024;  // bytes of overflow that one patch pass patches
constexpr std::uint64_t piece_overlap = 1024;   // the largest entry
constexpr std::size_t guard = 64;               // bytes around an output that must stay as they were

// A message in host memory, with its overflow, aligned as engines demand.
class HostMessage {
 public:
  explicit HostMessage(const Layout& layout)
      : layout_(layout),
        message_(layout.static_bytes + codec::section_alignment),
        overflow_(layout.max_overflow_bytes() + codec::section_alignment) {}

  std::uint8_t* message() { return align(message_); }
  std::uint8_t* overflow() { return align(overflow_); }
  MessageHeader header() {
    MessageHeader header;
    std::memcpy(&header, message(), sizeof(header));
    return header;
  }
  std::uint64_t overflow_bytes() { return layout_.overflow_bytes(header().entry_units); }

 private:
  static std::uint8_t* align(std::vector<std::uint8_t>& bytes) {
    void* pointer = bytes.data();
    std::size_t space = bytes.size();
    return static_cast<std::uint8_t*>(
        std::align(codec::section_alignment, bytes.size() - codec::section_alignment, pointer, space));
  }

  Layout layout_;
  std::vector<std::uint8_t> message_;
  std::vector<std::uint8_t> overflow_;
};

class CodecTest {
 public:
  explicit CodecTest(codec::Device& device)
      : device_(device), scratch_(device, codec::encode_scratch_bytes), summaries_(device, max_batch) {
    require(device.clear(scratch_.data(), scratch_.size()), device, "clear");
  }

  void round_trip(const std::string& name, std::span<const std::uint16_t> values, std::uint32_t pool_fraction,
                  std::size_t offset);
  void batch(std::uint64_t count, std::uint64_t stride_values, std::uint32_t messages, std::uint32_t skip,
             std::uint32_t pool_fraction);
  void corrupt(std::uint64_t count, std::uint32_t pool_fraction, unsigned rounds, std::uint64_t seed);
  void huge();

 private:
  static constexpr std::uint32_t max_batch = 16;

  // Grows and never shrinks, so that thousands of small cases allocate little.
  static std::uint8_t* room(codec::Device& device, Memory& memory, std::size_t bytes) {
    if (memory.size() < bytes) memory = Memory(device, bytes + bytes / 2);
    return memory.data();
  }
  void encode(const void* values, std::uint64_t count, std::uint32_t pool_fraction, void* message, void* overflow);
  // First pass and, in pieces, patch passes; the bytes of the overflow are at `overflow`.
  void decode(const void* message, const void* overflow, std::uint64_t overflow_bytes, std::uint64_t count,
              std::uint32_t pool_fraction, void* values);
  void compare_messages(const std::string& name, const Layout& layout, HostMessage& cuda, HostMessage& host);

  codec::Device& device_;
  Memory scratch_;
  Memory message_;
  Memory overflow_;
  Memory output_;
  MappedSummaries summaries_;
};

void CodecTest::encode(const void* values, std::uint64_t count, std::uint32_t pool_fraction, void* message,
                       void* overflow) {
  codec::EncodeJob job;
  job.values = values;
  job.count = count;
  job.pool_fraction = pool_fraction;
  job.message = message;
  job.overflow = overflow;
  job.overflow_bytes = Layout::of(count, pool_fraction).max_overflow_bytes();
  job.scratch = scratch_.data();
  job.sequence = test_sequence;
  job.chunk = test_chunk;
  require(device_.encode(job, nullptr), device_, "encode");
}

codec::DecodeJob decode_job(std::uint64_t count, std::uint32_t pool_fraction) {
  codec::DecodeJob job;
  job.message_count = 1;
  job.count = count;
  job.pool_fraction = pool_fraction;
  job.sequence = test_sequence;
  job.chunk = test_chunk;
  return job;
}

void CodecTest::decode(const void* message, const void* overflow, std::uint64_t overflow_bytes, std::uint64_t count,
                       std::uint32_t pool_fraction, void* values) {
  codec::DecodeJob job = decode_job(count, pool_fraction);
  job.messages = message;
  job.values = values;
  job.summaries = summaries_.data();
  summaries_.clear();
  require(device_.decode(job, nullptr), device_, "decode");
  for (std::uint64_t begin = 0; begin < overflow_bytes; begin += piece_step) {
    job.overflow = static_cast<const std::uint8_t*>(overflow) + begin;
    job.overflow_begin = begin;
    job.overflow_step = piece_step;
    job.overflow_size = std::min(piece_step + piece_overlap, overflow_bytes - begin);
    require(device_.decode(job, nullptr), device_, "patch");
  }
}

// Equal but for the order of entries and undefined bytes.
void CodecTest::compare_messages(const std::string& name, const Layout& layout, HostMessage& cuda, HostMessage& host) {
  const std::size_t sections = layout.tails - layout.planes;
  // How many of several entries lie beyond the pool depends on their order.
  MessageHeader header = cuda.header();
  expect((header.overflow_tiles != 0) == (header.entry_units > layout.pool_units), name + ": overflow tiles");
  header.overflow_tiles = host.header().overflow_tiles;
  expect(std::memcmp(&header, host.message(), sizeof(header)) == 0, name + ": header");
  expect(std::memcmp(cuda.message() + layout.planes, host.message() + layout.planes, sections) == 0,
         name + ": planes and codes");
  const auto entry = [&](HostMessage& message, const std::uint8_t* tail, std::uint32_t units) {
    std::uint32_t first = 0;
    std::memcpy(&first, tail + codec::tail_bytes - 4, sizeof(first));
    return layout.in_pool(first, units) ? message.message() + layout.pool + std::uint64_t{first} * codec::unit_bytes
                                        : message.overflow() + layout.overflow_offset(first);
  };
  std::uint64_t different = 0;
  for (std::uint64_t tile = 0; tile < layout.tiles; ++tile) {
    const std::uint8_t* a = cuda.message() + layout.tails + tile * codec::tail_bytes;
    const std::uint8_t* b = host.message() + layout.tails + tile * codec::tail_bytes;
    const unsigned mode = a[1] & 3;
    if (std::memcmp(a, b, mode == 0 ? codec::tail_bytes : codec::tail_bytes - 4) != 0) {
      ++different;
    } else if (mode != 0) {
      const std::uint32_t units = mode == 2 ? codec::raw_entry_units : a[1] >> codec::tail_units_shift;
      different += std::memcmp(entry(cuda, a, units), entry(host, b, units), units * codec::unit_bytes) != 0;
    }
  }
  expect(different == 0, name + ": " + std::to_string(different) + " tails or entries");
}

// `offset` bytes lie between a 16-byte boundary and the values; they end where their allocation ends.
void CodecTest::round_trip(const std::string& name, std::span<const std::uint16_t> values, std::uint32_t pool_fraction,
                           std::size_t offset) {
  const std::uint64_t count = values.size();
  const Layout layout = Layout::of(count, pool_fraction);
  const std::string title = name + ", " + std::to_string(count) + " values, pool " + std::to_string(pool_fraction) +
                            ", offset " + std::to_string(offset);
  const Memory input(device_, offset + values.size_bytes());
  fill(input.data(), poison, offset);  // read with the first values, so that initcheck has nothing to say
  upload(input.data() + offset, values.data(), values.size_bytes());
  std::uint8_t* message = room(device_, message_, layout.static_bytes);
  std::uint8_t* overflow = room(device_, overflow_, layout.max_overflow_bytes());
  fill(message, poison, layout.static_bytes);
  encode(input.data() + offset, count, pool_fraction, message, overflow);
  expect(count_other_bytes(scratch_.data(), 0, scratch_.size()) == 0, title + ": scratch is not zero again");

  HostMessage from_cuda(layout);
  download(from_cuda.message(), message, layout.static_bytes);
  download(from_cuda.overflow(), overflow, from_cuda.overflow_bytes());
  HostMessage from_host(layout);
  codec::EncodeJob job;
  job.values = values.data();
  job.count = count;
  job.pool_fraction = pool_fraction;
  job.message = from_host.message();
  job.overflow = from_host.overflow();
  job.overflow_bytes = layout.max_overflow_bytes();
  job.sequence = test_sequence;
  job.chunk = test_chunk;
  require(HostEngine::encode(job), device_, "host encode");
  compare_messages(title, layout, from_cuda, from_host);

  // CUDA to CUDA, then host to CUDA.
  const std::size_t output_bytes = guard + offset + values.size_bytes() + guard;
  std::uint8_t* output = room(device_, output_, output_bytes) + guard + offset;
  for (HostMessage* source : {&from_cuda, &from_host}) {
    const std::string direction = title + (source == &from_cuda ? ", from CUDA" : ", from host");
    upload(message, source->message(), layout.static_bytes);
    upload(overflow, source->overflow(), source->overflow_bytes());
    fill(output_.data(), poison, output_bytes);
    decode(message, overflow, source->overflow_bytes(), count, pool_fraction, output);
    const std::uint64_t wrong = count_differences(output, input.data() + offset, values.size_bytes());
    expect(wrong == 0, direction + ": " + std::to_string(wrong) + " bytes wrong");
    expect(count_other_bytes(output_.data(), poison, guard + offset) == 0 &&
               count_other_bytes(output + values.size_bytes(), poison, guard) == 0,
           direction + ": bytes around the output");
    const MessageHeader header = source->header();
    const MessageSummary expected{0, 0, header.entry_units, header.escapes, header.far_escapes, header.overflow_tiles};
    expect(std::memcmp(&expected, &summaries_[0], sizeof(expected)) == 0, direction + ": summary");
  }

  // CUDA to host.
  codec::DecodeJob host_job = decode_job(count, pool_fraction);
  Values decoded(count, 0xA5A5);
  MessageSummary summary{};
  host_job.messages = from_cuda.message();
  host_job.values = decoded.data();
  host_job.summaries = &summary;
  require(HostEngine::decode(host_job), device_, "host decode");
  if (from_cuda.overflow_bytes() != 0) {
    host_job.overflow = from_cuda.overflow();
    host_job.overflow_step = host_job.overflow_size = from_cuda.overflow_bytes();
    require(HostEngine::decode(host_job), device_, "host patch");
  }
  expect(summary.status == 0, title + ", to host: status " + std::to_string(summary.status));
  expect(std::equal(decoded.begin(), decoded.end(), values.begin()), title + ", to host: values");
}

void CodecTest::batch(std::uint64_t count, std::uint64_t stride_values, std::uint32_t messages, std::uint32_t skip,
                      std::uint32_t pool_fraction) {
  const std::string title = "batch of " + std::to_string(messages) + " x " + std::to_string(count);
  const Layout layout = Layout::of(count, pool_fraction);
  const Values values = mixture_values(stride_values * messages, 3.0f, count);
  const Memory input(device_, values.size() * 2);
  upload(input.data(), values.data(), values.size() * 2);
  const std::uint64_t message_stride = layout.static_bytes + codec::section_alignment;
  const std::uint64_t overflow_stride = layout.max_overflow_bytes();
  std::uint8_t* message = room(device_, message_, message_stride * messages);
  std::uint8_t* overflow = room(device_, overflow_, overflow_stride * messages);
  std::uint8_t* output = room(device_, output_, values.size() * 2);
  fill(output, poison, values.size() * 2);
  for (std::uint32_t m = 0; m < messages; ++m) {
    encode(input.data() + m * stride_values * 2, count, pool_fraction, message + m * message_stride,
           overflow + m * overflow_stride);
  }
  codec::DecodeJob job = decode_job(count, pool_fraction);
  job.messages = message;
  job.message_stride = message_stride;
  job.message_count = messages;
  job.skip = skip;
  job.values = output;
  job.value_stride = stride_values * 2;
  job.summaries = summaries_.data();
  summaries_.clear();
  require(device_.decode(job, nullptr), device_, "decode");
  synchronize();
  std::uint64_t most = 0;
  for (std::uint32_t m = 0; m < messages; ++m) most = std::max(most, summaries_[m].entry_units);
  if (layout.overflow_bytes(most) != 0) {
    job.overflow = overflow;
    job.overflow_stride = overflow_stride;
    job.overflow_step = job.overflow_size = layout.overflow_bytes(most);
    require(device_.decode(job, nullptr), device_, "patch");
  }
  for (std::uint32_t m = 0; m < messages; ++m) {
    const std::uint8_t* out = output + m * stride_values * 2;
    expect(m == skip ? count_other_bytes(out, poison, count * 2) == 0
                     : count_differences(out, input.data() + m * stride_values * 2, count * 2) == 0,
           title + ": message " + std::to_string(m));
    expect(count_other_bytes(out + count * 2, poison, (stride_values - count) * 2) == 0, title + ": gap");
    MessageHeader header;
    download(&header, message + m * message_stride, sizeof(header));
    expect(summaries_[m].status == 0 && summaries_[m].escapes == header.escapes &&
               summaries_[m].entry_units == header.entry_units,
           title + ": summary " + std::to_string(m));
  }
}

// Both engines must agree on whether a damaged message is good, and on its values if it is.
void CodecTest::corrupt(std::uint64_t count, std::uint32_t pool_fraction, unsigned rounds, std::uint64_t seed) {
  const Layout layout = Layout::of(count, pool_fraction);
  std::mt19937_64 random(seed);
  unsigned accepted = 0;
  const std::size_t output_bytes = count * 2 + 2 * guard;
  std::uint8_t* message = room(device_, message_, layout.static_bytes);
  std::uint8_t* output = room(device_, output_, output_bytes) + guard;
  for (unsigned round = 0; round < rounds; ++round) {
    const std::string title = "corrupt message " + std::to_string(round);
    const Values values = round % 3 == 0 ? random_bits(count, round) : spread_values(count, 5 + round % 20, round);
    HostMessage host(layout);
    codec::EncodeJob encode_job;
    encode_job.values = values.data();
    encode_job.count = count;
    encode_job.pool_fraction = pool_fraction;
    encode_job.message = host.message();
    encode_job.overflow = host.overflow();
    encode_job.overflow_bytes = layout.max_overflow_bytes();
    encode_job.sequence = test_sequence;
    encode_job.chunk = test_chunk;
    require(HostEngine::encode(encode_job), device_, "host encode");
    // Mostly where it hurts: in tails; else anywhere, or everywhere.
    std::uint8_t* bytes = host.message();
    for (unsigned i = 0; i <= random() % 4; ++i) {
      const bool tails = random() % 4 != 0;
      const std::uint64_t begin = tails ? layout.tails : 0;
      const std::uint64_t end = tails ? layout.tails + layout.tiles * codec::tail_bytes : layout.static_bytes;
      bytes[begin + random() % (end - begin)] = static_cast<std::uint8_t>(random());
    }
    if (round % 16 == 15) {
      for (std::uint64_t i = sizeof(MessageHeader); i < layout.static_bytes; ++i) {
        bytes[i] = static_cast<std::uint8_t>(random());
      }
    }
    const std::uint64_t present = std::min(host.overflow_bytes(), layout.max_overflow_bytes());
    const Memory overflow(device_, present);
    upload(message, bytes, layout.static_bytes);
    upload(overflow.data(), host.overflow(), present);
    fill(output_.data(), poison, output_bytes);
    decode(message, overflow.data(), present, count, pool_fraction, output);
    synchronize();
    expect(count_other_bytes(output_.data(), poison, guard) == 0 &&
               count_other_bytes(output + count * 2, poison, guard) == 0,
           title + ": bytes around the output");

    codec::DecodeJob job = decode_job(count, pool_fraction);
    Values decoded(count, 0xA5A5);
    MessageSummary summary{};
    job.messages = bytes;
    job.values = decoded.data();
    job.summaries = &summary;
    require(HostEngine::decode(job), device_, "host decode");
    for (std::uint64_t begin = 0; begin < present; begin += piece_step) {
      job.overflow = host.overflow() + begin;
      job.overflow_begin = begin;
      job.overflow_step = piece_step;
      job.overflow_size = std::min(piece_step + piece_overlap, present - begin);
      require(HostEngine::decode(job), device_, "host patch");
    }
    expect((summary.status == 0) == (summaries_[0].status == 0),
           title + ": status " + std::to_string(summaries_[0].status) + ", host " + std::to_string(summary.status));
    if (summary.status != 0) continue;
    ++accepted;
    Values from_cuda(count);
    download(from_cuda.data(), output, count * 2);
    expect(from_cuda == decoded, title + ": values");
  }
  expect(accepted > 0 && accepted < rounds, "corrupt messages: all or none were found out");
}

void CodecTest::huge() {
  constexpr std::uint64_t count = std::uint64_t{1} << 33;
  constexpr std::uint32_t pool_fraction = 32;
  const Layout layout = Layout::of(count, pool_fraction);
  const Memory input(device_, count * 2);
  const Memory output(device_, count * 2);
  const Memory message(device_, layout.static_bytes);
  const Memory overflow(device_, layout.max_overflow_bytes());
  generate_hashed(reinterpret_cast<std::uint16_t*>(input.data()), count, 1);
  fill(output.data(), poison, count * 2);
  encode(input.data(), count, pool_fraction, message.data(), overflow.data());
  MessageHeader header;
  download(&header, message.data(), sizeof(header));
  codec::DecodeJob job = decode_job(count, pool_fraction);
  job.messages = message.data();
  job.values = output.data();
  job.summaries = summaries_.data();
  summaries_.clear();
  require(device_.decode(job, nullptr), device_, "decode");
  if (layout.overflow_bytes(header.entry_units) != 0) {
    job.overflow = overflow.data();
    job.overflow_step = job.overflow_size = layout.overflow_bytes(header.entry_units);
    require(device_.decode(job, nullptr), device_, "patch");
  }
  const std::uint64_t wrong = count_differences(output.data(), input.data(), count * 2);
  expect(wrong == 0 && summaries_[0].status == 0, "2^33 values: " + std::to_string(wrong) + " bytes wrong");
  std::printf("2^33 values: %llu escapes, %llu far, %llu units of %u\n",
              static_cast<unsigned long long>(header.escapes), static_cast<unsigned long long>(header.far_escapes),
              static_cast<unsigned long long>(header.entry_units), layout.pool_units);
}

// What collectives ask of a Device beside the codec.
void device_calls(codec::Device& device) {
  codec::Event event = nullptr;
  require(device.create_event(&event), device, "create_event");
  Memory memory(device, 1 << 20);
  require(device.clear(memory.data(), memory.size()), device, "clear");
  expect(count_other_bytes(memory.data(), 0, memory.size()) == 0, "clear");
  fill(memory.data(), poison, memory.size() / 2);
  require(device.copy(memory.data() + memory.size() / 2, memory.data(), memory.size() / 2, nullptr), device, "copy");
  require(device.record(event, nullptr), device, "record");
  require(device.wait(event, nullptr), device, "wait");
  require(device.synchronize(), device, "synchronize");
  bool done = false;
  require(device.query(event, &done), device, "query");
  expect(done, "an event is not done after synchronize");
  device.destroy_event(event);
  expect(count_other_bytes(memory.data(), poison, memory.size()) == 0, "copy");
  std::uint64_t capture = 1;
  require(device.capture(nullptr, &capture), device, "capture");
  expect(capture == 0, "a stream captures that nobody asked to");

  codec::EncodeJob job;
  job.message = memory.data();
  expect(device.encode(job, nullptr) == Status::invalid_argument, "encode without scratch memory");
  job.scratch = memory.data() + memory.size() / 2;
  job.message = memory.data() + 1;
  expect(device.encode(job, nullptr) == Status::invalid_argument, "encode to a misaligned message");
  expect(device.decode(codec::DecodeJob{}, nullptr) == Status::ok, "decode of no messages");
  std::unique_ptr<codec::Device> none;
  std::string why;
  expect(codec::make_cuda_device(1000, &none, &why) != Status::ok && none == nullptr && !why.empty(), "device 1000");
}

void run(codec::Device& device, bool quick, bool huge, const std::string& recorded) {
  device_calls(device);
  std::thread(device_calls, std::ref(device)).join();  // a thread that has used no GPU yet
  if (!quick) {                                        // memory checkers, which run the quick tests, report it
    void* pointer = nullptr;
    expect(device.allocate(&pointer, std::size_t{1} << 60) == Status::out_of_memory && *device.last_error() != 0,
           "allocating an exbibyte");
  }
  CodecTest test(device);
  for (const Input& input : all_inputs(quick ? 20 * 1024 : 300 * 1024 + 77, 1)) {
    for (const std::uint32_t pool_fraction : {0u, 4u, 256u, codec::max_pool_fraction}) {
      test.round_trip(input.name, input.values, pool_fraction, 0);
      test.round_trip(input.name, input.values, pool_fraction, 6);
    }
  }
  const Values mixture = mixture_values(5000, 20.0f, 2);
  for (std::size_t count = 0; count <= mixture.size(); count += quick ? 61 : 1) {
    test.round_trip("odd counts", std::span(mixture).first(count), 8, count * 2 % 16);
  }
  for (std::size_t offset = 0; offset < 16; offset += 2) {
    for (const std::size_t count : {1024u, 1025u, 1031u, 1032u, 2048u, 3071u, 4096u, 5000u}) {
      test.round_trip("alignments", std::span(mixture).first(count), 8, offset);
    }
  }
  test.batch(5000, 5000, 5, 2, 64);
  test.batch(5000, 5001, 5, ~0u, 64);
  test.batch(4096, 4096, 8, 7, 0);
  test.batch(1, 3, 3, 0, 0);
  test.corrupt(6 * 1024 + 100, 300, quick ? 64 : 400, 3);
  test.corrupt(6 * 1024, 4, quick ? 64 : 400, 4);
  if (!recorded.empty()) {
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(recorded)) {
      if (entry.path().extension() != ".bf16") continue;
      ++files;
      const Values values = read_values(entry.path());
      test.round_trip(entry.path().filename(), values, 16, 0);
      test.round_trip(entry.path().filename(), std::span(values).subspan(1), 0, 2);
    }
    require(files > 0, "no *.bf16 in " + recorded);
  }
  if (huge) test.huge();
}

}  // namespace
}  // namespace zipccl::test

int main(int argc, char** argv) {
  bool quick = false;
  bool huge = false;
  std::string recorded;
  for (const std::string_view argument : std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    if (argument == "--quick") {
      quick = true;
    } else if (argument == "--huge") {
      huge = true;
    } else {
      recorded = argument;
    }
  }
  const auto device = zipccl::test::open_device();
  if (device == nullptr) return zipccl::test::skip_exit_code;
  zipccl::test::run(*device, quick, huge, recorded);
  std::printf("gpu-codec-test on %s: %d failures\n", device->name(), zipccl::test::failures());
  return zipccl::test::failures() == 0 ? 0 : 1;
}
