//! Finds renames of files and directories outside of the crate that replaces files atomically.

use crate::{
    TextFile, extension, is_within,
    source::{Source, without_tests},
};

/// The only file that renames.
pub const ALLOWED: &str = "common/transfer/src/durable.rs";
/// The functions that rename.
const FUNCTIONS: &[&str] = &["rename", "renameat", "renameat2", "renameat_with"];

/// Whether the file is a part of a shipped program.
pub fn is_checked(path: &str) -> bool {
    let is_test =
        path.contains("/tests/") || path.ends_with("/tests.rs") || path.contains("/fuzz/");
    extension(path) == "rs"
        && is_within(path, &["cloud", "edge", "common"])
        && path != ALLOWED
        && !is_test
}

/// The calls that rename, as `path:line: text`. Tests in the file are left out.
pub fn renames(file: &TextFile) -> Vec<String> {
    let (code, _) = without_tests(&Source::new(&file.text).code());
    let both = code.lines().zip(file.text.lines()).enumerate();
    let renaming = both.filter(|(_, (code, _))| calls(code));
    renaming.map(|(at, (_, text))| format!("{}:{}: {}", file.path, at + 1, text.trim())).collect()
}

fn calls(code: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    FUNCTIONS.iter().any(|name| {
        code.match_indices(name).any(|(at, _)| {
            let rest = code[at + name.len()..].trim_start();
            !code[..at].ends_with(is_name) && rest.starts_with('(')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{is_checked, renames};
    use crate::TextFile;

    #[test]
    fn calls_of_a_file_are_found_and_those_of_its_tests_are_not() {
        let text = "// fs::rename(a, b)\nfs::rename(a, b)?;\nrustix::fs::renameat (a, b, c, d);\n\
            #[serde(rename = \"x\")]\nfn renamed(x: u8) { prename(\"rename(\"); }\n\
            #[cfg(test)]\nmod tests { fn f() { fs::rename(a, b); } }\n";
        let file = TextFile { path: "edge/a.rs".to_owned(), text: text.to_owned() };
        let expected =
            ["edge/a.rs:2: fs::rename(a, b)?;", "edge/a.rs:3: rustix::fs::renameat (a, b, c, d);"];
        assert_eq!(renames(&file), expected);
    }

    #[test]
    fn only_files_of_shipped_programs_are_checked() {
        for (path, expected) in [
            ("edge/src/a.rs", true),
            ("common/transfer/src/durable.rs", false),
            ("cloud/aggregator/tests/aggregator/recovery.rs", false),
            ("edge/src/training/output/tests.rs", false),
            ("hack/devcluster/src/kubeconfig.rs", false),
        ] {
            assert_eq!(is_checked(path), expected, "{path}");
        }
    }
}
