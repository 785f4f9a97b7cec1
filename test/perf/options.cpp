#include "test/perf/options.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>

namespace zipccl::test {

namespace {

// A number with an optional suffix K, M or G (powers of 1,024).
std::uint64_t parse_size(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  double unit = 1;
  switch (*end) {
    case 'k':
    case 'K':
      unit = 1024;
      break;
    case 'm':
    case 'M':
      unit = 1024.0 * 1024;
      break;
    case 'g':
    case 'G':
      unit = 1024.0 * 1024 * 1024;
      break;
    default:
      break;
  }
  const bool suffixed = unit > 1;
  if (end == text.c_str() || number < 0 || (suffixed ? end[1] : end[0]) != '\0') {
    fail("'" + text + "' is not a size");
  }
  return static_cast<std::uint64_t>(number * unit);
}

std::vector<double> parse_list(const std::string& text) {
  std::vector<double> numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    char* rest = nullptr;
    numbers.push_back(std::strtod(item.c_str(), &rest));
    if (item.empty() || *rest != '\0' || !(numbers.back() >= 0)) {
      fail("'" + text + "' is not a list of numbers");
    }
    begin = end + 1;
  }
  return numbers;
}

Split parse_split(const std::string& name) {
  static const std::map<std::string, Split> splits = {
      {"even", Split::even}, {"zipf", Split::zipf}, {"single-hot", Split::single_hot}};
  const auto found = splits.find(name);
  if (found == splits.end()) {
    fail("unknown split '" + name + "'");
  }
  return found->second;
}

}  // namespace

void fail(const std::string& message) {
  std::fprintf(stderr, "collective-perf: %s\n", message.c_str());
  std::_Exit(2);
}

Options parse_options(int count, char** arguments) {
  Options options;
  if (count < 2) {
    fail("name a collective: all-gather, all-to-all or send-recv");
  }
  options.collective = arguments[1];
  const auto number = [](int* target) {
    return [target](const std::string& text) { *target = static_cast<int>(parse_size(text)); };
  };
  const auto size = [](std::uint64_t* target) {
    return [target](const std::string& text) { *target = parse_size(text); };
  };
  const auto flag = [](bool* target) { return [target](const std::string& text) { *target = text != "0"; }; };
  const auto string = [](std::string* target) { return [target](const std::string& text) { *target = text; }; };
  const std::map<std::string, std::function<void(const std::string&)>> known = {
      {"-b", size(&options.smallest)},
      {"-e", size(&options.largest)},
      {"-f", size(&options.factor)},
      {"-i", size(&options.increment)},
      {"-n", number(&options.iterations)},
      {"-w", number(&options.warm_up)},
      {"-c", flag(&options.check)},
      {"-d", string(&options.type)},
      {"-J", string(&options.json)},
      {"--in-place", flag(&options.in_place)},
      {"--hook", flag(&options.hook)},
      {"--input", string(&options.input)},
      {"--data", string(&options.data)},
      {"--directory", string(&options.directory)},
      {"--graph", flag(&options.graph)},
      {"--hold-back", flag(&options.hold_back)},
      {"--late", [&options](const std::string& text) { options.late = parse_list(text); }},
      {"--in-two", [&options](const std::string& text) { options.in_two = parse_list(text).front(); }},
      {"--grouped", flag(&options.grouped)},
      {"--split", [&options](const std::string& text) { options.split = parse_split(text); }},
  };
  for (int index = 2; index < count; index += 2) {
    const auto found = known.find(arguments[index]);
    if (found == known.end()) {
      fail("unknown option " + std::string(arguments[index]));
    }
    if (index + 1 == count) {
      fail("no value for " + std::string(arguments[index]));
    }
    found->second(arguments[index + 1]);
  }
  if (options.iterations < 1 || options.warm_up < 0) {
    fail("-n must be at least 1 and -w at least 0");
  }
  if (options.increment == 0 && options.factor < 2) {
    fail("-f must be at least 2, or -i above 0");
  }
  return options;
}

ElementType element_type(const std::string& name) {
  static const std::map<std::string, ElementType> types = {
      {"int8", {ncclInt8, 1}},         {"uint8", {ncclUint8, 1}},   {"int32", {ncclInt32, 4}},
      {"uint32", {ncclUint32, 4}},     {"int64", {ncclInt64, 8}},   {"uint64", {ncclUint64, 8}},
      {"half", {ncclFloat16, 2}},      {"float", {ncclFloat32, 4}}, {"double", {ncclFloat64, 8}},
      {"bfloat16", {ncclBfloat16, 2}},
  };
  const auto found = types.find(name);
  if (found == types.end()) {
    fail("unknown type " + name);
  }
  return found->second;
}

}  // namespace zipccl::test
