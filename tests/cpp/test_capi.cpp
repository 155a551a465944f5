#include <doctest/doctest.h>

extern "C" int check_capi(void);

TEST_CASE("the C ABI works from C99") { CHECK(check_capi() == 0); }
