// Catch2 2 needs one translation unit that carries its main; version 3 brings a library instead.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
