#pragma once

#include <string_view>

namespace weft::recipes {

/// The parts of report.html, from train/report/page/: the build puts the
/// files' text into the library (assets.cpp.in).
std::string_view report_page();
std::string_view report_style();
std::string_view report_script();
/// "weft 0.1.0".
std::string_view report_maker();

} // namespace weft::recipes
