//! Finds property tests that a run repeats when they fail: with other input they pass, and hide what
//! they found.

use std::collections::BTreeSet;

use crate::{
    TextFile,
    source::{Source, item_end, test_functions},
};

/// The property tests of a file that the configuration of cargo-nextest does not name. No test of
/// the level unit is repeated.
pub fn repeated(file: &TextFile, configuration: &str) -> Vec<String> {
    if binary(&file.path).is_none_or(|binary| is_unit(binary, configuration)) {
        return Vec::new();
    }
    let code = Source::new(&file.text).code();
    let blocks = code.split("proptest!").skip(1).map(|rest| &rest[..item_end(rest)]);
    let named: BTreeSet<&str> = words(configuration).collect();
    let missing = blocks.flat_map(test_functions).filter(|test| !named.contains(&**test));
    missing.map(|test| format!("{}: {test}", file.path)).collect()
}

/// The binary that a file in the folder `tests` of a crate belongs to.
fn binary(path: &str) -> Option<&str> {
    let (_, in_tests) = path.split_once("/tests/").filter(|(before, _)| !before.contains("src"))?;
    in_tests.split(['/', '.']).next()
}

/// Whether the level unit has the binary.
fn is_unit(binary: &str, configuration: &str) -> bool {
    let unit = configuration.split("[profile.unit]").nth(1).unwrap_or_default();
    let filter = unit.lines().find(|line| line.starts_with("default-filter")).unwrap_or_default();
    words(filter).any(|word| word == binary)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn property_test_is_named_or_in_the_level_unit() {
        let configuration = "filter = 'test(/(^|::)(named)$/)'\nretries = 0\n\n[profile.unit]\n\
            default-filter = \"kind(lib) + binary(/^(crds|rounds)$/)\"\n";
        let text = "#[test]\nfn plain() {}\nproptest! {\n    #[test]\n    fn named(x in 0..2) {}\n    \
            #[test]\n    fn missing(x in 0..2) {}\n}\n#[test]\nfn later() {}\n";
        let problems = |path: &str| {
            repeated(&TextFile { path: path.to_owned(), text: text.to_owned() }, configuration)
        };
        assert_eq!(problems("edge/tests/agent/a.rs"), ["edge/tests/agent/a.rs: missing"]);
        assert_eq!(problems("edge/tests/agent.rs"), ["edge/tests/agent.rs: missing"]);
        for path in ["edge/tests/rounds.rs", "edge/tests/crds/a.rs", "edge/src/tests/a.rs", "a.rs"]
        {
            assert_eq!(problems(path), [""; 0], "{path}");
        }
    }
}
