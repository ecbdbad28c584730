// What the experiments write: CSV, tables of Markdown, and summary.md.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

using Lines = std::vector<std::string>;

/// A CSV file with a first line of names.
class Csv {
 public:
  Csv(const std::string& path, const std::string& names) : file_(path) {
    TORCH_CHECK(file_, "expected --out to name a folder to write to, got no file ", path);
    file_.precision(9);
    file_ << names << '\n';
  }

  template <class First, class... Rest>
  void add(const First& first, const Rest&... rest) {
    file_ << first;
    ((file_ << ',' << rest), ...);
    file_ << '\n';
  }

 private:
  std::ofstream file_;
};

/// With that many digits after the point.
inline std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

/// Characters of UTF-8.
inline size_t width_of(const std::string& text) {
  const auto starts = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; };
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), starts));
}

/// A table of Markdown, aligned so that it can be read as text. The first column is of names, the
/// others of numbers.
class Table {
 public:
  explicit Table(Lines header) : rows_{std::move(header)} {}
  void add(Lines row) { rows_.push_back(std::move(row)); }

  std::string text() const {
    const std::vector<size_t> widths = all_widths();
    std::string text = line(rows_[0], widths) + rule(widths);
    for (size_t i = 1; i < rows_.size(); ++i) text += line(rows_[i], widths);
    return text.substr(0, text.size() - 1);
  }

 private:
  std::vector<size_t> all_widths() const {
    std::vector<size_t> widths(rows_[0].size());
    for (const Lines& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
    }
    return widths;
  }

  static std::string line(const Lines& row, const std::vector<size_t>& widths) {
    std::string text = "|";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - width_of(row[i]), ' ');
      text += ' ' + (i == 0 ? row[i] + pad : pad + row[i]) + " |";
    }
    return text + '\n';
  }

  static std::string rule(const std::vector<size_t>& widths) {
    std::string text = "|";
    for (size_t i = 0; i < widths.size(); ++i) {
      text += i == 0 ? std::string(widths[i] + 2, '-') : std::string(widths[i] + 1, '-') + ':';
      text += '|';
    }
    return text + '\n';
  }

  std::vector<Lines> rows_;
};

/// Prints the parts of the summary, and the problems to stderr, and writes both to summary.md in
/// the folder `out`. Returns the exit status: 1 if there are problems.
inline int finish(const std::string& title, const Lines& parts, const Lines& problems,
                  const std::string& out) {
  std::ofstream summary(out + "/summary.md");
  summary << "# " << title << '\n';
  for (const std::string& part : parts) {
    summary << '\n' << part << '\n';
    std::cout << '\n' << part << '\n';
  }
  std::cout << "\nsummary.md and the tables are in " << out << std::endl;
  for (const std::string& problem : problems) {
    summary << '\n' << problem << '\n';
    std::cerr << problem << '\n';
  }
  return problems.empty() ? 0 : 1;
}
