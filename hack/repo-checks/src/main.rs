//! Prints the files and functions that are longer than the project aims for, longest first.
//! Tests are left out. A report only: it always succeeds.

use repo_checks::{
    extension,
    length::{Long, MAX_FILE_LINES, MAX_FUNCTION_LINES, long_file, long_functions},
    tracked_files,
};

fn main() {
    let is_source = |path: &str| {
        let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
        extension(path) == "rs" && !is_test
    };
    let files = tracked_files(is_source);
    print(
        &format!("files above {MAX_FILE_LINES} lines before their tests"),
        files.iter().filter_map(long_file),
    );
    print(
        &format!("functions above {MAX_FUNCTION_LINES} lines"),
        files.iter().flat_map(long_functions),
    );
}

fn print(title: &str, found: impl Iterator<Item = Long>) {
    let mut found: Vec<Long> = found.collect();
    found.sort_by(|a, b| b.lines.cmp(&a.lines).then_with(|| a.place.cmp(&b.place)));
    println!("{title}: {}", found.len());
    for Long { lines, place } in found {
        println!("{lines:6} {place}");
    }
}
