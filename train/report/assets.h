#pragma once

#include <string_view>

namespace weft::train {

/// The parts of report.html from train/report/page/. The build compiles the
/// text of these files into the library (assets.cpp.in).
std::string_view report_page();
std::string_view report_style();
std::string_view report_script();
/// Returns "weft 0.1.0".
std::string_view report_maker();

} // namespace weft::train
