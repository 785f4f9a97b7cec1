#include "interpose/report.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "interpose/config.hpp"
#include "interpose/log.hpp"
#include "interpose/process.hpp"
#include "interpose/real_nccl.hpp"

namespace zipccl::interpose::report {

namespace {

using collectives::Bucket;
using collectives::Counter;
using Json = nlohmann::ordered_json;

constexpr std::time_t interval_seconds = 10;
constexpr std::size_t kept_ended = 1000;  // of a job that makes communicators without end, the first ones

std::uint64_t value(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

// Coarse seconds: the clock is read in every call.
std::time_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return time.tv_sec;
}

Json to_json(const Bucket& bucket) {
  Json calls = Json::object();
  for (std::size_t route = 0; route < collectives::route_count; ++route) {
    if (const std::uint64_t count = value(bucket.calls[route]); count > 0) {
      calls[collectives::to_string(static_cast<collectives::Route>(route))] = count;
    }
  }
  Json result = {{"calls", calls}};
  if (const std::uint64_t wire = value(bucket.wire_bytes); wire > 0) {
    result["raw_bytes"] = value(bucket.raw_bytes);
    result["wire_bytes"] = wire;
    result["ratio"] = static_cast<double>(value(bucket.raw_bytes)) / static_cast<double>(wire);
  }
  // Only where the host sees the headers (exchange mode exact); otherwise the communicator's "exchange" has them.
  if (const std::uint64_t values = value(bucket.values); values > 0) {
    result["values"] = values;
    result["escapes"] = value(bucket.escapes);
    result["overflow_chunks"] = value(bucket.overflow_chunks);
    result["overflow_bytes"] = value(bucket.overflow_bytes);
    result["host_wait_seconds"] = static_cast<double>(value(bucket.host_wait_ns)) * 1e-9;
  }
  return result;
}

Json to_json(const char* collective, const CallClass::State& state) {
  Json switches = Json::array();
  for (const CallClass::Switch& one : state.switches) {
    Json entry = {{"call", one.call}, {"state", one.compressed ? "compressed" : "native"}};
    if (one.compressed) {
      entry["pool_bytes"] = one.pool_bytes;
    }
    switches.push_back(entry);
  }
  const switcher::FenceSetting& current = state.gate.current;
  Json result = {{"collective", collective},
                 {"dtype", "bfloat16"},
                 {"state", current.compressed ? "compressed" : "native"},
                 {"calls", state.gate.calls},
                 {"switches", switches},
                 {"fence_waits", state.gate.waits},
                 {"fence_wait_seconds", static_cast<double>(state.gate.wait_ns) * 1e-9}};
  if (current.compressed) {
    result["pool_bytes"] = pool_bytes_of(current.pool_fraction);
  } else {
    result["reason"] = state.reason;
  }
  return result;
}

// Those of which there have been calls, the all-gathers' in any case.
Json classes_of(const Classes& classes, bool* ever_compressed) {
  const CallClass::State all_gather = classes.all_gather().state();
  const CallClass::State all_to_all = classes.transfers().all_to_all().state();
  *ever_compressed = all_gather.ever_compressed || all_to_all.ever_compressed;
  Json result = {to_json("all_gather", all_gather)};
  if (all_to_all.gate.calls > 0) {
    result.push_back(to_json("all_to_all", all_to_all));
  }
  for (const TransferClasses::PairState& pair : classes.transfers().pair_states()) {
    Json entry = to_json(pair.sends ? "send" : "receive", pair.state);
    entry["peer"] = pair.peer;
    result.push_back(entry);
    *ever_compressed = *ever_compressed || pair.state.ever_compressed;
  }
  return result;
}

Json to_json(const CommState& state, const char* fate) {
  Json buckets = Json::array();
  for (std::size_t collective = 0; collective < collectives::collective_count; ++collective) {
    for (std::size_t power = 0; power < collectives::bucket_count; ++power) {
      const Json body = to_json(state.statistics.buckets[collective][power]);
      if (!body["calls"].empty()) {
        Json entry = {{"collective", collectives::to_string(static_cast<collectives::Collective>(collective))},
                      {"from_bytes", std::uint64_t{1} << power}};
        entry.update(body);
        buckets.push_back(entry);
      }
    }
  }
  const collectives::Communicator& communicator = state.communicator;
  bool compressed = false;
  const Json classes = state.classes != nullptr ? classes_of(*state.classes, &compressed) : Json::array();
  const CallClass::State all_gather =
      state.classes != nullptr ? state.classes->all_gather().state() : CallClass::State{};
  Json result = {{"name", state.name},
                 {"number", state.number},
                 {"rank", communicator.rank},
                 {"ranks", communicator.rank_count},
                 {"state", compressed ? "compressed" : "native"},
                 {"fate", fate}};
  if (!compressed) {
    result["reason"] = state.compressed ? "its all-gathers: " + all_gather.reason : state.reason;
  }
  if (state.compressed) {
    result["staging_bytes"] = all_gather.staging_bytes;
    result["min_bytes"] = communicator.agreement.min_bytes;
    result["sequence"] = communicator.sequence.load();
    result["classes"] = classes;
    result["transfer_staging_bytes"] = communicator.transfer_staging_bytes.load(std::memory_order_relaxed);
  }
  if (const OverflowLink* overflow = state.overflow()) {
    const collectives::OverflowPort& port = overflow->port();
    const codec::ExchangeCounters counters = port.counters();
    result["exchange"] = {{"chunks", counters.finished},
                          {"values", counters.values},
                          {"escapes", counters.escapes},
                          {"overflow_messages", counters.overflow_messages},
                          {"overflow_bytes_received", counters.overflow_bytes},
                          {"overflow_bytes_sent", port.sent_bytes()},
                          {"overflow_wait_seconds", static_cast<double>(counters.wait_ns) * 1e-9},
                          {"exchange_seconds", static_cast<double>(counters.exchange_ns) * 1e-9},
                          {"host_memory_bytes", port.mapped_bytes()},
                          {"host_memory_records_bytes", overflow->buffered_bytes()}};
  }
  if (const auto error = static_cast<Status>(state.statistics.error.load()); error != Status::ok) {
    result["error"] = describe(error);
  }
  result["buckets"] = buckets;
  return result;
}

class Writer {
 public:
  explicit Writer(std::string directory) : directory_(std::move(directory)) {}

  void start() {
    std::call_once(registered_, [this] {
      std::atexit([] { instance()->write_at_exit(); });
      write();
    });
  }

  void tick() {
    std::time_t last = last_write_.load(std::memory_order_relaxed);
    const std::time_t time = now();
    if (time - last >= interval_seconds && last_write_.compare_exchange_strong(last, time)) {
      write();
    }
  }

  void closed(const CommState& state, const char* fate) {
    {
      const std::lock_guard lock(mutex_);
      if (ended_.size() < kept_ended) {
        ended_.push_back(to_json(state, fate));
      } else {
        ++dropped_;
      }
    }
    write();
  }

  // Null without ZIPCCL_REPORT. Never destroyed.
  static Writer* instance() {
    static Writer* const own = configuration().settings.report_directory.empty()
                                   ? nullptr
                                   : new Writer(configuration().settings.report_directory);
    return own;
  }

 private:
  void write_at_exit() {
    if (!in_forked_child()) {  // the child inherits the registration
      write();
    }
  }

  Json document() const {
    const RealNccl& real = RealNccl::get();
    Json settings = Json::object();
    for (const auto& [name, text] : configuration().given) {
      settings[name] = text;
    }
    Json communicators = ended_;
    for (const CommPointer& state : CommTable::instance().all()) {
      communicators.push_back(to_json(*state, "open"));
    }
    std::sort(communicators.begin(), communicators.end(),
              [](const Json& one, const Json& other) { return one["number"] < other["number"]; });
    return {{"format", 1},
            {"version", ZIPCCL_VERSION},
            {"host", log::host_name()},
            {"process", getpid()},
            {"nccl", {{"version", real.version_text()}, {"path", real.path()}}},
            {"settings", settings},
            {"route_settings", configuration().route_settings()},
            {"communicators", communicators},
            {"communicators_left_out", dropped_}};
  }

  void write() {
    const std::lock_guard lock(mutex_);
    if (failed_) {
      return;
    }
    const std::string path = directory_ + "/zipccl-" + log::host_name() + "-" + std::to_string(getpid()) + ".json";
    const std::string temporary = path + ".tmp";
    // A name in the user's environment may hold bytes that are not UTF-8.
    const std::string text = document().dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    std::error_code error;
    std::filesystem::create_directories(directory_, error);  // a failure shows when the file is opened
    std::FILE* file = std::fopen(temporary.c_str(), "we");
    bool good = file != nullptr;
    if (good) {
      good = std::fwrite(text.data(), 1, text.size(), file) == text.size();
      good = std::fclose(file) == 0 && good;
      good = good && std::rename(temporary.c_str(), path.c_str()) == 0;
    }
    if (!good) {
      log::write(
          LogLevel::error,
          "ZIPCCL_REPORT: cannot write %s: %s; there will be no report unless it names a folder that can be written",
          path.c_str(), std::strerror(errno));
      failed_ = true;
    }
    last_write_.store(now(), std::memory_order_relaxed);
  }

  const std::string directory_;
  std::once_flag registered_;
  std::atomic<std::time_t> last_write_ = 0;
  std::mutex mutex_;  // guards the following; never held across a call of the real NCCL
  Json ended_ = Json::array();
  std::uint64_t dropped_ = 0;
  bool failed_ = false;
};

}  // namespace

void start() {
  if (Writer* writer = Writer::instance()) {
    writer->start();
  }
}

void tick() noexcept {
  try {
    if (Writer* writer = Writer::instance()) {
      writer->tick();
    }
  } catch (const std::exception&) {
    // No memory: the next one writes. A report is not worth a call.
  }
}

void closed(const CommState& state, const char* fate) {
  if (Writer* writer = Writer::instance()) {
    writer->closed(state, fate);
  }
}

}  // namespace zipccl::interpose::report
