#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "interpose/config.hpp"
#include "interpose/log.hpp"
#include "interpose/staging_pool.hpp"
#include "test/unit/catch.hpp"

using namespace zipccl::interpose;
using zipccl::collectives::Agreement;
using zipccl::collectives::Exchange;
using zipccl::switcher::LinkClass;

TEST_CASE("an empty environment gives the documented defaults") {
  const Configuration own = parse_configuration({});
  CHECK(own.errors.empty());
  CHECK(own.warnings.empty());
  CHECK(own.settings.enabled);
  CHECK(own.settings.collectives.all_gather);
  CHECK(!own.settings.min_bytes.has_value());
  CHECK(own.settings.exchange == Exchange::fixed);
  CHECK(own.settings.staging_bytes == 128u << 20);
  CHECK(!own.settings.ignore_max_connections);
  CHECK(own.settings.report_directory.empty());
  CHECK(own.settings.debug == LogLevel::warn);
  const Agreement agreed = own.agreement(7, LinkClass::network);
  CHECK(agreed.staging_bytes == 7);
  CHECK(agreed.all_gather);
  CHECK(agreed.min_bytes > 0);
  CHECK(agreed.pool_fraction == 16);  // a byte for each of 256 tiles, in units of 16
}

TEST_CASE("accepted values") {
  CHECK(!parse_configuration({{"ZIPCCL", "off"}}).settings.enabled);
  CHECK(!parse_configuration({{"ZIPCCL_COLLECTIVES", "none"}}).settings.collectives.any());
  CHECK(parse_configuration({{"ZIPCCL_COLLECTIVES", "allgather,allgather"}}).settings.collectives.all_gather);
  CHECK(parse_configuration({{"ZIPCCL_MIN_BYTES", "0"}}).agreement(0, LinkClass::network).min_bytes == 0);
  CHECK(parse_configuration({{"ZIPCCL_MIN_BYTES", "3K"}}).agreement(0, LinkClass::network).min_bytes == 3072);
  CHECK(parse_configuration({{"ZIPCCL_MIN_BYTES", "2M"}}).agreement(0, LinkClass::network).min_bytes == 2u << 20);
  CHECK(parse_configuration({{"ZIPCCL_MIN_BYTES", "5G"}}).agreement(0, LinkClass::network).min_bytes == std::uint64_t{5}
                                                                                                            << 30);
  CHECK(parse_configuration({{"ZIPCCL_STAGING_MB", "1"}}).settings.staging_bytes == 1u << 20);
  CHECK(parse_configuration({{"ZIPCCL_POOL", "0"}}).agreement(0, LinkClass::network).pool_fraction == 0);
  CHECK(parse_configuration({{"ZIPCCL_POOL", "1024"}}).agreement(0, LinkClass::network).pool_fraction == 16384);
  CHECK(parse_configuration({{"ZIPCCL_IGNORE_MAX_CONNECTIONS", "1"}}).settings.ignore_max_connections);
  CHECK(parse_configuration({{"ZIPCCL_DEBUG", "TRACE"}}).settings.debug == LogLevel::trace);
  CHECK(parse_configuration({{"ZIPCCL_DEBUG", "info"}}).settings.debug == LogLevel::info);
  CHECK(!parse_configuration({{"ZIPCCL", "OFF"}}).settings.enabled);
  CHECK(parse_configuration({{"ZIPCCL_REPORT", "/tmp/a b"}}).settings.report_directory == "/tmp/a b");
}

TEST_CASE("whatever a wrong value is, its message is one line that says what is accepted") {
  for (const std::string& value : {std::string("a\nb\tc"), std::string(3000, 'x')}) {
    const Configuration own = parse_configuration({{"ZIPCCL_STAGING_MB", value}, {"ZIPCCL_" + value, "1"}});
    REQUIRE(own.errors.size() == 1);
    REQUIRE(own.warnings.size() == 1);
    for (const std::string& message : {own.errors.front(), own.warnings.front()}) {
      CHECK(message.size() < 300);
      CHECK(message.find_first_of("\n\t") == std::string::npos);
    }
    CHECK(own.errors.front().ends_with("is not accepted; use 1 to 65536"));
  }
}

TEST_CASE("copy engines bring all-gathers over NVLink in, and nothing else") {
  const Configuration plain = parse_configuration({});
  CHECK(!plain.settings.copy_engines);
  const Configuration own = parse_configuration({{"ZIPCCL_COPY_ENGINES", "1"}});
  CHECK(own.settings.copy_engines);
  CHECK(own.settings.start == plain.settings.start);
  CHECK(own.route_settings() != plain.route_settings());
  const Agreement agreed = own.agreement(7, LinkClass::nvlink, true);
  CHECK(agreed.copy_engines);
  CHECK(agreed.all_gather);
  CHECK(!agreed.all_to_all);
  CHECK(!agreed.point_to_point);
  CHECK(agreed.min_bytes == 32u << 20);
  CHECK(!own.agreement(7, LinkClass::nvlink, false).any());
  CHECK(parse_configuration({{"ZIPCCL_COPY_ENGINES", "1"}, {"ZIPCCL_MIN_BYTES", "1M"}})
            .agreement(7, LinkClass::nvlink, true)
            .min_bytes == 1u << 20);
  CHECK(!parse_configuration({{"ZIPCCL_COPY_ENGINES", "1"}, {"ZIPCCL_COLLECTIVES", "p2p"}})
             .agreement(7, LinkClass::nvlink, true)
             .copy_engines);
}

TEST_CASE("where the user names no smallest size, the slowest link does") {
  const Configuration automatic = parse_configuration({});
  const Configuration given = parse_configuration({{"ZIPCCL_MIN_BYTES", "5"}});
  for (const LinkClass link : {LinkClass::same_device, LinkClass::nvlink}) {
    CHECK(!automatic.agreement(0, link).all_gather);
    CHECK(given.agreement(0, link).all_gather);
    CHECK(given.agreement(0, link).min_bytes == 5);
  }
  for (const LinkClass link : {LinkClass::pcie, LinkClass::shared_memory, LinkClass::network, LinkClass::sockets}) {
    CHECK(automatic.agreement(0, link).all_gather);
    CHECK(automatic.agreement(0, link).min_bytes > 0);
    CHECK(given.agreement(0, link).min_bytes == 5);
  }
}

TEST_CASE("a call more costs most over sockets") {
  using zipccl::collectives::ChunkPlan;
  const Configuration own = parse_configuration({});
  CHECK(own.agreement(0, LinkClass::sockets).call_ns == ChunkPlan::sockets_call_ns);
  for (const LinkClass link :
       {LinkClass::same_device, LinkClass::nvlink, LinkClass::pcie, LinkClass::shared_memory, LinkClass::network}) {
    CHECK(own.agreement(0, link, link == LinkClass::nvlink).call_ns == ChunkPlan::usual_call_ns);
  }
}

TEST_CASE("an empty value is an unset one") {
  const Configuration own = parse_configuration({{"ZIPCCL", ""}, {"ZIPCCL_POOL", ""}});
  CHECK(own.errors.empty());
  CHECK(own.settings.enabled);
  CHECK(own.given.empty());
}

TEST_CASE("a wrong value is one error that says what is accepted, and leaves the default") {
  const auto [name, value] = GENERATE(table<std::string, std::string>({{"ZIPCCL", "yes"},
                                                                       {"ZIPCCL_COLLECTIVES", "allreduce"},
                                                                       {"ZIPCCL_COLLECTIVES", "allgather,"},
                                                                       {"ZIPCCL_COLLECTIVES", "none,allgather"},
                                                                       {"ZIPCCL_MIN_BYTES", "-1"},
                                                                       {"ZIPCCL_MIN_BYTES", "1.5M"},
                                                                       {"ZIPCCL_MIN_BYTES", "M"},
                                                                       {"ZIPCCL_MIN_BYTES", "18446744073709551615G"},
                                                                       {"ZIPCCL_EXCHANGE", "dynamic"},
                                                                       {"ZIPCCL_STAGING_MB", "0"},
                                                                       {"ZIPCCL_STAGING_MB", "65537"},
                                                                       {"ZIPCCL_POOL", "1025"},
                                                                       {"ZIPCCL_IGNORE_MAX_CONNECTIONS", "yes"},
                                                                       {"ZIPCCL_DEBUG", "verbose"}}));
  CAPTURE(name, value);
  const Configuration own = parse_configuration({{name, value}});
  REQUIRE(own.errors.size() == 1);
  CHECK(own.errors[0].find(name + "=" + value + " is not accepted; use ") == 0);
  CHECK(own.route_settings() == parse_configuration({}).route_settings());
}

TEST_CASE("what many communicators share is the default staging") {
  CHECK(parse_configuration({}).settings.staging_bytes == StagingPool::most_shared);
}

TEST_CASE("an unknown variable is one warning, with the nearest known name if it may be a slip") {
  const Configuration own = parse_configuration({{"ZIPCCL_COLECTIVES", "x"}, {"ZIPCCLX", "not ours"}, {"PATH", "/"}});
  CHECK(own.errors.empty());
  REQUIRE(own.warnings.size() == 1);
  CHECK(own.warnings[0].find("ZIPCCL_COLECTIVES") != std::string::npos);
  CHECK(own.warnings[0].find("did you mean ZIPCCL_COLLECTIVES?") != std::string::npos);
  const Configuration far = parse_configuration({{"ZIPCCL_SOMETHING_ELSE", "x"}});
  REQUIRE(far.warnings.size() == 1);
  CHECK(far.warnings[0].find("did you mean") == std::string::npos);
}

TEST_CASE("settings that decide routes are canonical, and others do not count") {
  const auto routes = [](const Environment& environment) { return parse_configuration(environment).route_settings(); };
  const auto standard = routes({});
  CHECK(routes({{"ZIPCCL_MIN_BYTES", "1M"}}) == routes({{"ZIPCCL_MIN_BYTES", "1024K"}}));
  CHECK(routes({{"ZIPCCL_COLLECTIVES", "p2p,alltoall,allgather"}}) == standard);
  CHECK(routes({{"ZIPCCL_COLLECTIVES", "p2p,alltoall"}}) == routes({{"ZIPCCL_COLLECTIVES", "alltoall,p2p,alltoall"}}));
  for (const Environment& local : {Environment{{"ZIPCCL_DEBUG", "INFO"}}, Environment{{"ZIPCCL_REPORT", "/tmp"}},
                                   Environment{{"ZIPCCL_STAGING_MB", "64"}}, Environment{{"ZIPCCL_NCCL_LIB", "x"}}}) {
    CHECK(routes(local) == standard);
  }
  for (const Environment& shared :
       {Environment{{"ZIPCCL_MIN_BYTES", "1"}}, Environment{{"ZIPCCL_COLLECTIVES", "none"}},
        Environment{{"ZIPCCL_COLLECTIVES", "allgather"}}, Environment{{"ZIPCCL_COLLECTIVES", "alltoall,p2p"}},
        Environment{{"ZIPCCL_POOL", "9"}}, Environment{{"ZIPCCL_IGNORE_MAX_CONNECTIONS", "1"}}}) {
    CHECK(routes(shared) != standard);
  }
}

TEST_CASE("log file names expand %h and %p, and nothing else") {
  const std::string host = log::host_name();
  const std::string process = std::to_string(getpid());
  CHECK(log::expand_pattern("/tmp/%h/%p.log") == "/tmp/" + host + "/" + process + ".log");
  CHECK(log::expand_pattern("100%") == "100%");
  CHECK(log::expand_pattern("%x%%p") == "%x%" + process);
}

TEST_CASE("README lists every variable with its default") {
  std::ifstream file(README_PATH);
  const std::string readme((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  REQUIRE(!readme.empty());
#define CHECK_ROW(member, name, kind, standard, accepted, description)                                          \
  {                                                                                                             \
    const std::string shown = std::string(standard).empty() ? "none" : "`" + std::string(standard) + "`";       \
    CHECK(readme.find("| `" name "` | " + shown + " | " accepted " | " description " |") != std::string::npos); \
  }
  ZIPCCL_PARAMETERS(CHECK_ROW)
#undef CHECK_ROW
}
