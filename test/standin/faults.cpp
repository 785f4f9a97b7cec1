#include "test/standin/faults.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <string>
#include <thread>

#include "test/standin/error.hpp"
#include "test/standin/settings.hpp"

namespace standin {
namespace {

enum class Action { error, async_error, exit, kill, delay };

struct Rule {
  int rank = -1;  // any
  std::string call;
  std::uint64_t nth = 1;
  Action action = Action::error;
  std::uint64_t parameter = 0;  // result or milliseconds
  std::atomic<std::uint64_t> seen{0};
};

struct Faults {
  std::deque<Rule> rules;
  std::string problem;  // not empty: the variable cannot be understood
  int process_rank = -1;
};

Error complaint(const std::string& field, const std::string& why) {
  return Error(ncclSystemError, "STANDIN_FAULT: '" + field + "' " + why);
}

bool is_exported(const std::string& call) {
  Dl_info here{};
  if (call.rfind("nccl", 0) != 0 || dladdr(reinterpret_cast<const void*>(&require_valid_faults), &here) == 0)
    return false;
  void* library = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const bool found = dlsym(library, call.c_str()) != nullptr;
  dlclose(library);
  return found;
}

void parse_action(const std::string& field, const std::string& value, Rule* rule) {
  const std::size_t colon = value.find(':');
  const std::string name = value.substr(0, colon);
  const bool has_parameter = colon != std::string::npos;
  if (has_parameter && !parse_number(value.substr(colon + 1), &rule->parameter)) {
    throw complaint(field, "needs a number after the colon");
  }
  if (name == "exit" || name == "kill") {
    if (has_parameter) throw complaint(field, "takes no number");
    rule->action = name == "exit" ? Action::exit : Action::kill;
    return;
  }
  if (name == "delay") {
    rule->action = Action::delay;
  } else if (name == "error" || name == "async") {
    rule->action = name == "error" ? Action::error : Action::async_error;
    if (has_parameter && (rule->parameter == 0 || rule->parameter >= ncclNumResults)) {
      throw complaint(field, "is not an error of NCCL");
    }
  } else {
    throw complaint(field, "is not error:N, async:N, exit, kill or delay:MS");
  }
  if (!has_parameter) throw complaint(field, "needs a number, as in " + name + ":1");
}

void parse_rule(const std::string& text, Rule* rule) {
  bool has_action = false;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string field = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t equals = field.find('=');
    if (equals == std::string::npos) throw complaint(field, "is not key=value");
    const std::string key = field.substr(0, equals);
    const std::string value = field.substr(equals + 1);
    std::uint64_t number = 0;
    if (key == "rank" && parse_number(value, &number) && number <= INT32_MAX) {
      rule->rank = static_cast<int>(number);
    } else if (key == "nth" && parse_number(value, &number) && number > 0) {
      rule->nth = number;
    } else if (key == "call" && is_exported(value)) {
      rule->call = value;
    } else if (key == "action") {
      parse_action(field, value, rule);
      has_action = true;
    } else {
      throw complaint(field, "is not rank=NUMBER, call=FUNCTION, nth=NUMBER (from 1) or action=ACTION");
    }
  }
  if (rule->call.empty() || !has_action) throw complaint(text, "lacks call= or action=");
}

Faults* parse_environment() {
  auto* faults = new Faults;  // never destroyed: calls may come while the process exits
  std::uint64_t rank = 0;
  if (const char* text = std::getenv("RANK"); text != nullptr && parse_number(text, &rank)) {
    faults->process_rank = static_cast<int>(rank);
  }
  const char* variable = std::getenv("STANDIN_FAULT");
  if (variable == nullptr || *variable == '\0') return faults;
  const std::string text = variable;
  try {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find(';', begin), text.size());
      parse_rule(text.substr(begin, end - begin), &faults->rules.emplace_back());
      begin = end + 1;
    }
  } catch (const Error& error) {
    faults->rules.clear();
    faults->problem = error.what();
    const std::string line = "stand-in NCCL: " + faults->problem + "\n";
    if (write(STDERR_FILENO, line.data(), line.size()) < 0) return faults;  // the result says it, too
  }
  return faults;
}

Faults& faults() {
  static Faults* const instance = parse_environment();
  return *instance;
}

void carry_out(const Rule& rule, Injection* injection) {
  switch (rule.action) {
    case Action::error:
      set_last_error("injected error in " + rule.call);
      injection->result = static_cast<ncclResult_t>(rule.parameter);
      break;
    case Action::async_error:
      injection->asynchronous = static_cast<ncclResult_t>(rule.parameter);
      break;
    case Action::exit:
      std::exit(1);
    case Action::kill:
      raise(SIGKILL);
      break;
    case Action::delay:
      std::this_thread::sleep_for(std::chrono::milliseconds(rule.parameter));
      break;
  }
}

}  // namespace

void require_valid_faults() {
  if (!faults().problem.empty()) throw Error(ncclSystemError, faults().problem);
}

Injection inject_fault(const char* call, int rank) {
  Injection injection;
  Faults& all = faults();
  if (all.rules.empty()) return injection;
  if (rank < 0) rank = all.process_rank;
  for (Rule& rule : all.rules) {
    if (rule.call != call || (rule.rank >= 0 && rule.rank != rank)) continue;
    if (rule.seen.fetch_add(1) + 1 == rule.nth) carry_out(rule, &injection);
  }
  return injection;
}

}  // namespace standin
