// The codec's speed and size on one GPU, with nccl-tests' flags and conventions. Sizes are of uncompressed values;
// algbw is that size over the time. `ceiling` is the algbw that a kernel at the speed of a device-to-device copy, timed
// in the same run, would have on the bytes that an encode or decode must move.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "codec/format.hpp"
#include "codec/overflow.hpp"
#include "test/gpu/codec_inputs.hpp"
#include "test/gpu/device_fixture.hpp"
#include "test/perf/device_timer.hpp"

namespace zipccl::test {
namespace {

using codec::Layout;

// Small sizes take turns in this much memory, so that the L2 cache does not hold what a training step would not have
// left there.
constexpr std::uint64_t rotated_bytes = std::uint64_t{512} << 20;
constexpr std::uint64_t most_sets = 128;

struct Options {
  std::uint64_t begin = std::uint64_t{1} << 20;
  std::uint64_t end = std::uint64_t{1} << 30;
  std::uint64_t factor = 4;
  unsigned samples = 20;
  unsigned warmup = 5;
  std::optional<std::uint32_t> pool_fraction;  // without: each input's own, see fitting_pool()
  std::uint64_t offset = 0;                    // bytes between a 256-byte boundary and the values
  std::string input = "normal";
  std::string exchange = "static";
  std::string json;
};

[[noreturn]] void usage(int code) {
  std::fprintf(
      code == 0 ? stdout : stderr,
      "codec-perf [-b 1M] [-e 1G] [-f 4] [-n 20] [-w 5] [--input normal|random|zeros|recorded:DIRECTORY]\n"
      "           [--pool-fraction UNITS_PER_256_TILES] [--offset BYTES] [--exchange static|exact] [--json FILE]\n");
  std::exit(code);
}

std::uint64_t parse_size(const char* text) {
  char* rest = nullptr;
  const std::uint64_t number = std::strtoull(text, &rest, 10);
  const std::string suffix = rest;
  const unsigned shift = suffix == "K" ? 10 : suffix == "M" ? 20 : suffix == "G" ? 30 : 0;
  if (rest == text || (shift == 0 && !suffix.empty())) {
    usage(2);
  }
  return number << shift;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "-h" || flag == "--help") {
      usage(0);
    }
    if (i + 1 == argc) {
      usage(2);
    }
    const char* value = argv[++i];
    if (flag == "-b") {
      options.begin = parse_size(value);
    } else if (flag == "-e") {
      options.end = parse_size(value);
    } else if (flag == "-f") {
      options.factor = parse_size(value);
    } else if (flag == "-n") {
      options.samples = static_cast<unsigned>(parse_size(value));
    } else if (flag == "-w") {
      options.warmup = static_cast<unsigned>(parse_size(value));
    } else if (flag == "--pool-fraction") {
      options.pool_fraction = static_cast<std::uint32_t>(parse_size(value));
    } else if (flag == "--offset") {
      options.offset = parse_size(value);
    } else if (flag == "--input") {
      options.input = value;
    } else if (flag == "--exchange") {
      options.exchange = value;
    } else if (flag == "--json") {
      options.json = value;
    } else {
      usage(2);
    }
  }
  if (options.begin < 2 || options.factor < 2 || options.samples == 0 || options.offset % 2 != 0 ||
      (options.exchange != "static" && options.exchange != "exact") ||
      options.pool_fraction.value_or(0) > codec::max_pool_fraction) {
    usage(2);
  }
  return options;
}

std::vector<Input> load_inputs(const std::string& kind) {
  constexpr std::size_t period = std::size_t{1} << 22;
  const std::string recorded = "recorded:";
  if (kind == "normal") {
    return {{kind, normal_values(period, 0.02f, 1)}};
  }
  if (kind == "random") {
    return {{kind, random_bits(period, 1)}};
  }
  if (kind == "zeros") {
    return {{kind, Values(period, 0)}};
  }
  if (kind.compare(0, recorded.size(), recorded) != 0) {
    usage(2);
  }
  std::vector<Input> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(kind.substr(recorded.size()))) {
    if (entry.path().extension() == ".bf16") {
      inputs.push_back({entry.path().stem(), read_values(entry.path())});
    }
  }
  std::sort(inputs.begin(), inputs.end(), [](const Input& a, const Input& b) { return a.name < b.name; });
  require(!inputs.empty(), "no *.bf16 in " + kind.substr(recorded.size()));
  return inputs;
}

struct Row {
  std::string input;
  std::uint64_t size;
  std::uint64_t count;
  double encode_us;
  double decode_us;
  double copy_gbps;       // bytes read and written by a copy of `size` bytes, per nanosecond
  double static_bits;     // a value
  double overflow_bits;   // a value
  double escape_percent;  // of values
  double entry_percent;   // of tiles
  double units_per_256;   // pool fraction that would have held all entries
  std::uint32_t pool_fraction;
  std::uint64_t wrong;  // bytes

  double algbw(double us) const { return static_cast<double>(size) / us * 1e-3; }
  // Copy speed over the bytes moved for a byte coded: it is read or written once, its code written or read once.
  double ceiling() const { return copy_gbps / (1 + (static_bits + overflow_bits) / 16); }
};

// Memory for one size: `sets` inputs, messages and outputs, used in turn.
struct Buffers {
  Buffers(codec::Device& device, const Layout& layout, std::uint64_t size, std::uint64_t offset)
      : stride((size + offset + 255) / 256 * 256),
        sets(std::clamp<std::uint64_t>(rotated_bytes / std::max<std::uint64_t>(stride, 1), 1, most_sets)),
        input(device, sets * stride),
        output(device, sets * stride),
        message(device, sets * layout.static_bytes),
        overflow(device, layout.max_overflow_bytes()),
        scratch(device, codec::encode_scratch_bytes),
        lock(device, sizeof(std::uint32_t)),
        room(device, channel_bytes),
        summaries(device, 1),
        owner(device) {
    require(device.clear(scratch.data(), scratch.size()), device, "clear");
    require(device.clear(lock.data(), lock.size()), device, "clear");
    void* mapped = nullptr;
    require(device.allocate_mapped(&mapped, sizeof(Channel)), device, "mapped memory");
    channel = static_cast<Channel*>(mapped);
    channel->release = 1;
  }
  ~Buffers() { owner.release_mapped(channel); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // As exchange mode static has it, but released, as nobody would take what is posted, or answer.
  void attach(codec::EncodeJob& job) const {
    job.outbox = &channel->outbox;
    job.outbox_capacity = channel_bytes;
    job.outbox_lock = reinterpret_cast<std::uint32_t*>(lock.data());
    job.release = &channel->release;
  }
  codec::ReceiveJob attached(const codec::DecodeJob& decode) const {
    codec::ReceiveJob job;
    job.decode = decode;
    job.mailbox = &channel->mailbox;
    job.mailbox_capacity = channel_bytes;
    job.room = room.data();
    job.release = &channel->release;
    job.counters = &channel->counters;
    return job;
  }

  static constexpr std::uint64_t channel_bytes = 4096;
  struct Channel {
    codec::Outbox outbox;
    std::byte outbox_data[channel_bytes];
    codec::Mailbox mailbox;
    std::byte mailbox_data[channel_bytes];
    codec::ExchangeCounters counters;
    std::uint32_t release;
  };

  std::uint64_t stride;
  std::uint64_t sets;
  Memory input;
  Memory output;
  Memory message;
  Memory overflow;
  Memory scratch;
  Memory lock;
  Memory room;  // of the mailbox
  MappedSummaries summaries;
  codec::Device& owner;
  Channel* channel = nullptr;
};

std::uint64_t count_entry_tiles(const std::uint8_t* message, const Layout& layout) {
  std::vector<std::uint8_t> tails(layout.tiles * codec::tail_bytes);
  download(tails.data(), message + layout.tails, tails.size());
  std::uint64_t entries = 0;
  for (std::uint64_t tile = 0; tile < layout.tiles; ++tile) {
    entries += tails[tile * codec::tail_bytes + 1] != 0;
  }
  return entries;
}

// The pool fraction that holds all of an input's entries, so that one decode writes every value. A message whose
// entries overflow needs a second pass, and timing the first alone would flatter.
std::uint32_t fitting_pool(codec::Device& device, const Input& input) {
  const Layout layout = Layout::of(input.values.size(), 0);
  const Memory values(device, input.values.size() * sizeof(std::uint16_t));
  const Memory message(device, layout.static_bytes);
  const Memory overflow(device, layout.max_overflow_bytes());
  const Memory scratch(device, codec::encode_scratch_bytes);
  require(device.clear(scratch.data(), scratch.size()), device, "clear");
  upload(values.data(), input.values.data(), values.size());
  codec::EncodeJob job;
  job.values = values.data();
  job.count = input.values.size();
  job.message = message.data();
  job.overflow = overflow.data();
  job.overflow_bytes = overflow.size();
  job.scratch = scratch.data();
  require(device.encode(job, nullptr), device, "encode");
  codec::MessageHeader header;
  download(&header, message.data(), sizeof(header));
  const std::uint64_t units = (header.entry_units * codec::pool_tiles + layout.tiles - 1) / layout.tiles;
  constexpr std::uint64_t smallest =
      16;  // zipccl's own default; sizes that cut a slice need a little more than its mean
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(std::max(smallest, units + units / 8), codec::max_pool_fraction));
}

Row measure(codec::Device& device, const Options& options, const Input& input, std::uint64_t size) {
  const std::uint64_t count = size / sizeof(std::uint16_t);
  const std::uint32_t pool_fraction = options.pool_fraction ? *options.pool_fraction : fitting_pool(device, input);
  const Layout layout = Layout::of(count, pool_fraction);
  const Buffers buffers(device, layout, size, options.offset);
  std::uint8_t* inputs = buffers.input.data() + options.offset;
  std::uint8_t* outputs = buffers.output.data() + options.offset;
  const Memory source(device, input.values.size() * sizeof(std::uint16_t));
  upload(source.data(), input.values.data(), source.size());
  for (std::uint64_t set = 0; set < buffers.sets; ++set) {
    replicate(reinterpret_cast<std::uint16_t*>(inputs + set * buffers.stride), count,
              reinterpret_cast<const std::uint16_t*>(source.data()), input.values.size());
  }
  fill(buffers.output.data(), 0xA5, buffers.output.size());

  const auto encode_job = [&](unsigned i) {
    const std::uint64_t set = i % buffers.sets;
    codec::EncodeJob job;
    job.values = inputs + set * buffers.stride;
    job.count = count;
    job.pool_fraction = pool_fraction;
    job.message = buffers.message.data() + set * layout.static_bytes;
    job.overflow = buffers.overflow.data();
    job.overflow_bytes = buffers.overflow.size();
    job.scratch = buffers.scratch.data();
    return job;
  };
  const auto encode = [&](unsigned i, codec::Stream stream) {
    codec::EncodeJob job = encode_job(i);
    if (options.exchange == "static") {
      buffers.attach(job);
    }
    require(device.encode(job, stream), device, "encode");
  };
  codec::DecodeJob job;
  job.message_count = 1;
  job.count = count;
  job.pool_fraction = pool_fraction;
  job.summaries = buffers.summaries.data();
  const auto decode_job = [&](unsigned i) {
    const std::uint64_t set = i % buffers.sets;
    job.messages = buffers.message.data() + set * layout.static_bytes;
    job.values = outputs + set * buffers.stride;
    return job;
  };
  const auto decode = [&](unsigned i, codec::Stream stream) {
    const bool received = options.exchange == "static";
    require(received ? device.receive(buffers.attached(decode_job(i)), stream) : device.decode(decode_job(i), stream),
            device, "decode");
  };
  const auto copy = [&](unsigned i, codec::Stream stream) {
    const std::uint64_t offset = i % buffers.sets * buffers.stride;
    require(device.copy(buffers.output.data() + offset, buffers.input.data() + offset, size, stream), device, "copy");
  };
  const auto launches = static_cast<unsigned>(buffers.sets);
  const auto time = [&](const auto& work) {
    return median_microseconds(launches, options.warmup, options.samples, work);
  };
  Row row{};
  row.input = input.name;
  row.size = size;
  row.count = count;
  row.pool_fraction = pool_fraction;
  row.copy_gbps = 2e-3 * static_cast<double>(size) / time(copy);
  fill(buffers.output.data(), 0xA5, buffers.output.size());
  row.encode_us = time(encode);
  row.decode_us = time(decode);

  // Verify the last set as it has been timed or, if it overflows, with its overflow at hand.
  const std::uint64_t last = buffers.sets - 1;
  codec::MessageHeader header;
  download(&header, buffers.message.data() + last * layout.static_bytes, sizeof(header));
  const std::uint64_t overflow_bytes = layout.overflow_bytes(header.entry_units);
  const Status expected = options.exchange == "static" && overflow_bytes != 0 ? Status::aborted : Status::ok;
  require(buffers.channel->counters.fault() == expected, "the timed decodes found a fault");
  if (overflow_bytes != 0) {
    require(device.encode(encode_job(static_cast<unsigned>(last)), nullptr), device, "encode");
    require(device.decode(decode_job(static_cast<unsigned>(last)), nullptr), device, "decode");
    job.overflow = buffers.overflow.data();
    job.overflow_step = job.overflow_size = overflow_bytes;
    require(device.decode(decode_job(static_cast<unsigned>(last)), nullptr), device, "decode");
  }
  row.wrong = count_differences(outputs + last * buffers.stride, inputs + last * buffers.stride, size);
  require(buffers.summaries[0].status == 0, "decode found a corrupt message");
  const auto values = static_cast<double>(count);
  const auto tiles = static_cast<double>(layout.tiles);
  row.static_bits = 8 * static_cast<double>(layout.static_bytes) / values;
  row.overflow_bits = 8 * static_cast<double>(overflow_bytes) / values;
  row.escape_percent = 100 * static_cast<double>(header.escapes) / values;
  row.entry_percent =
      100 * static_cast<double>(count_entry_tiles(buffers.message.data() + last * layout.static_bytes, layout)) / tiles;
  row.units_per_256 = 256 * static_cast<double>(header.entry_units) / tiles;
  return row;
}

void print_head(const codec::Device& device, const Options& options) {
  std::printf("# %s, BF16, medians of %u; units: pool that all entries need, for every 256 tiles\n", device.name(),
              options.samples);
  if (options.pool_fraction) {
    std::printf("# where entries overflow the given pool, decode is its first pass alone\n");
  }
  std::printf("# algbw and ceiling in GB/s of uncompressed bytes\n#\n");
  std::printf("#%11s %11s %5s | %9s %7s | %9s %7s %6s | %7s | %7s %8s %7s %7s %8s  %s\n", "size", "count", "type",
              "encode", "algbw", "decode", "algbw", "#wrong", "ceiling", "static", "overflow", "escapes", "entries",
              "units", "input");
  std::printf("#%11s %11s %5s | %9s %7s | %9s %7s %6s | %7s | %7s %8s %7s %7s %8s\n", "(B)", "(elements)", "", "(us)",
              "(GB/s)", "(us)", "(GB/s)", "(B)", "(GB/s)", "(bits)", "(bits)", "(%)", "(%tiles)", "(/256)");
}

void print(const Row& row) {
  std::printf("%12llu %11llu  bf16 | %9.2f %7.1f | %9.2f %7.1f %6llu | %7.1f | %7.3f %8.4f %7.2f %8.2f %7.1f  %s\n",
              static_cast<unsigned long long>(row.size), static_cast<unsigned long long>(row.count), row.encode_us,
              row.algbw(row.encode_us), row.decode_us, row.algbw(row.decode_us),
              static_cast<unsigned long long>(row.wrong), row.ceiling(), row.static_bits, row.overflow_bits,
              row.escape_percent, row.entry_percent, row.units_per_256, row.input.c_str());
  std::fflush(stdout);
}

nlohmann::json to_json(const Row& row) {
  return {{"input", row.input},
          {"size", row.size},
          {"count", row.count},
          {"type", "bfloat16"},
          {"encode_us", row.encode_us},
          {"encode_gbps", row.algbw(row.encode_us)},
          {"decode_us", row.decode_us},
          {"decode_gbps", row.algbw(row.decode_us)},
          {"copy_gbps", row.copy_gbps},
          {"ceiling_gbps", row.ceiling()},
          {"static_bits", row.static_bits},
          {"overflow_bits", row.overflow_bits},
          {"pool_fraction", row.pool_fraction},
          {"escape_percent", row.escape_percent},
          {"entry_tile_percent", row.entry_percent},
          {"units_per_256_tiles", row.units_per_256},
          {"wrong_bytes", row.wrong}};
}

int run(const Options& options) {
  const std::vector<Input> inputs = load_inputs(options.input);
  const auto device = open_device();
  if (device == nullptr) {
    return skip_exit_code;
  }
  print_head(*device, options);
  std::uint64_t wrong = 0;
  nlohmann::json rows = nlohmann::json::array();
  for (const Input& input : inputs) {
    for (std::uint64_t size = options.begin; size <= options.end; size *= options.factor) {
      const Row row = measure(*device, options, input, size);
      print(row);
      rows.push_back(to_json(row));
      wrong += row.wrong;
    }
  }
  std::printf("# Out of bounds values : %llu %s\n", static_cast<unsigned long long>(wrong),
              wrong == 0 ? "OK" : "FAILED");
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << nlohmann::json{{"device", device->name()}, {"rows", rows}}.dump(2) << '\n';
    require(file.good(), "cannot write " + options.json);
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace zipccl::test

int main(int argc, char** argv) {
  try {
    return zipccl::test::run(zipccl::test::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "codec-perf: %s\n", error.what());
    return 1;
  }
}
