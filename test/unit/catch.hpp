// Catch2 under one name: version 3 (Ubuntu 24.04, wraps) or the single header of version 2 (Debian 12).
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
