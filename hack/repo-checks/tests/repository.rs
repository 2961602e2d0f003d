//! The repository keeps its rules of language, layout and documentation.
#![allow(clippy::panic, clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

use repo_checks::{
    TextFile, doc_comments, documented, extension, fences, flaky,
    images::{missing_scripts, required_scripts},
    imports, is_within,
    language::{self, Exception, Finding},
    length, listeners, markdown, node_type, renames, retries, root,
    source::{Source, test_functions},
    tracked_files, tracked_paths, walks,
};

/// The uses that are right, with the reason for each.
const EXCEPTIONS: &str = "hack/repo-checks/exceptions.txt";

fn fail_with(findings: &[String], advice: &str) {
    assert!(findings.is_empty(), "{} findings; {advice}\n{}", findings.len(), findings.join("\n"));
}

fn exceptions() -> Vec<Exception> {
    let text = fs::read_to_string(root().join(EXCEPTIONS)).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parse = |line: &str| {
        Exception::parse(line)
            .unwrap_or_else(|| panic!("{EXCEPTIONS}: not path | word | text | reason: {line}"))
    };
    lines.map(parse).collect()
}

#[test]
fn vocabulary_is_the_fields() {
    let exceptions = exceptions();
    let files = tracked_files(language::is_checked);
    let findings: Vec<Finding> = files.iter().flat_map(language::findings).collect();
    let wrong = findings.iter().filter(|finding| !exceptions.iter().any(|e| e.covers(finding)));
    let wrong: Vec<String> = wrong.map(ToString::to_string).collect();
    fail_with(
        &wrong,
        &format!("use the field's word, or add the line to {EXCEPTIONS} with a reason"),
    );
}

#[test]
fn exceptions_from_the_vocabulary_are_used() {
    let files = tracked_files(language::is_checked);
    let findings: Vec<Finding> = files.iter().flat_map(language::findings).collect();
    let unused =
        exceptions().into_iter().filter(|e| !findings.iter().any(|finding| e.covers(finding)));
    let unused: Vec<String> =
        unused.map(|e| format!("{} | {} | {}", e.path, e.word, e.text)).collect();
    fail_with(&unused, &format!("remove the entries from {EXCEPTIONS} that cover nothing"));
}

#[test]
fn documentation_comments_are_sentences() {
    let files = tracked_files(|path| extension(path) == "rs");
    assert!(files.len() > 100);
    let short: Vec<String> = files.iter().flat_map(doc_comments::short_blocks).collect();
    let words = doc_comments::MAX_SHORT_WORDS;
    fail_with(
        &short,
        &format!(
            "explain in more than {words} words what the name does not, or remove the comment"
        ),
    );
}

#[test]
fn modules_depend_on_each_other_one_way() {
    let files = tracked_files(|path| extension(path) == "rs");
    let folders: Vec<String> = tracked_paths()
        .iter()
        .filter_map(|path| Some(format!("{}/src", path.strip_suffix("/Cargo.toml")?)))
        .filter(|folder| files.iter().any(|file| is_within(&file.path, &[folder])))
        .collect();
    assert!(folders.len() > 30, "{folders:?}");
    let cycles: Vec<String> = folders
        .iter()
        .flat_map(|folder| imports::cycles(folder, &files))
        .map(|cycle| cycle.to_string())
        .collect();
    fail_with(&cycles, "move what both sides need below both");
}

/// The crates that decide, and do no I/O.
const PURE: &[&str] = &[
    "neptune-agent-core",
    "neptune-api",
    "neptune-backoff",
    "neptune-cascade",
    "neptune-cloud-kinds",
    "neptune-gateway-config",
    "neptune-registry-config",
    "neptune-sources",
    "neptune-wire",
];

/// Runtimes, clients, servers, databases and logs.
const IMPURE: &[&str] = &[
    "bollard",
    "hyper",
    "kube-client",
    "log",
    "mio",
    "prometheus-client",
    "reqwest",
    "rumqttc",
    "rusqlite",
    "rustls",
    "tokio",
    "tracing",
];

#[test]
fn pure_crates_depend_on_no_runtime_client_or_log() {
    let mut wrong = Vec::new();
    for krate in PURE {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "--locked", "--edges", "normal", "--prefix", "none"]);
        let output = cargo.args(["--package", krate]).current_dir(root()).output().unwrap();
        let tree = String::from_utf8(output.stdout).unwrap();
        assert!(tree.starts_with(krate), "{}", String::from_utf8_lossy(&output.stderr));
        let names = tree.lines().filter_map(|line| line.split(' ').next());
        let names: BTreeSet<&str> = names.filter(|name| IMPURE.contains(name)).collect();
        wrong.extend(names.into_iter().map(|name| format!("{krate} -> {name}")));
    }
    fail_with(&wrong, "`cargo tree --package CRATE --edges normal` has the way");
}

#[test]
fn no_file_is_too_long() {
    let files = tracked_files(|path| extension(path) == "rs");
    let problems: Vec<String> = files.iter().filter_map(length::too_long).collect();
    fail_with(&problems, "split the file by what it decides");
}

#[test]
fn only_one_file_gives_finished_files_their_names() {
    let files = tracked_files(renames::is_checked);
    assert!(files.len() > 100 && fs::exists(root().join(renames::ALLOWED)).unwrap());
    let renaming: Vec<String> = files.iter().flat_map(renames::renames).collect();
    fail_with(&renaming, &format!("use replace, adopt or move_aside of {}", renames::ALLOWED));
}

#[test]
fn only_the_view_of_nodes_uses_the_type_of_their_objects() {
    let files = tracked_files(node_type::is_checked);
    let exists = |path: &&str| fs::exists(root().join(path)).unwrap();
    assert!(files.len() > 100 && node_type::ALLOWED.iter().all(exists));
    let importing: Vec<String> = files.iter().flat_map(node_type::imports).collect();
    fail_with(&importing, "use NodeView of cloud/kinds/src/kubernetes/node_view.rs");
}

#[test]
fn servers_use_the_shared_accept_loop() {
    let shipped = &["cloud", "common", "edge"];
    let files = tracked_files(|path| extension(path) == "rs" && is_within(path, shipped));
    let own_loops: Vec<String> = files.iter().flat_map(listeners::own_loops).collect();
    fail_with(&own_loops, "accept connections with listen::run of common/program");
}

#[test]
fn links_in_markdown_resolve() {
    let paths = tracked_paths();
    let exists = |path: &str| {
        path.is_empty() || root().join(path).exists() && paths.iter().any(|p| is_within(p, &[path]))
    };
    let files = tracked_files(|path| extension(path) == "md");
    let anchors: BTreeMap<&str, _> =
        files.iter().map(|file| (&*file.path, markdown::anchors(&file.text))).collect();
    let mut broken = Vec::new();
    for TextFile { path, text } in &files {
        for (line, target) in markdown::links(text) {
            let Some((to, anchor)) = markdown::resolve(path, &target) else { continue };
            let is_anchor = anchor
                .is_none_or(|anchor| anchors.get(&*to).is_none_or(|known| known.contains(&anchor)));
            if !exists(&to) || !is_anchor {
                broken.push(format!("{path}:{line}: {target}"));
            }
        }
    }
    fail_with(&broken, "correct the target or its #anchor");
}

#[test]
fn shell_blocks_of_pages_run_or_name_a_reason() {
    let pages = tracked_files(fences::is_checked);
    assert!(pages.len() > 40);
    let problems: Vec<String> = pages.iter().flat_map(|page| fences::scripts(page).1).collect();
    fail_with(&problems, "hack/test-docs.sh --help explains the attributes");
}

#[test]
fn documented_behaviour_has_tests_that_exist() {
    let rust = tracked_files(|path| extension(path) == "rs");
    let code = rust.iter().map(|file| Source::new(&file.text).code());
    let tests: BTreeSet<String> = code.flat_map(|code| test_functions(&code)).collect();
    let pages = tracked_files(|path| documented::PAGES.contains(&path));
    assert!(tests.len() > 2_000 && pages.len() == documented::PAGES.len());
    let problems: Vec<String> =
        pages.iter().flat_map(|page| documented::problems(page, &tests)).collect();
    fail_with(&problems, "name in the section Tests of the page the test of the row, or a reason");
}

/// The most files of each walk, in the order of the page.
const MAX_WALK_FILES: &[usize] = &[35, 28, 25, 45];

#[test]
fn walks_name_files_and_functions_that_exist() {
    let pages = tracked_files(|path| path == "docs/architecture.md");
    let sources = tracked_files(|path| extension(path) == "rs");
    let (walks, problems) = walks::walks(&pages[0], &sources);
    fail_with(&problems, "correct docs/architecture.md");
    assert_eq!(walks.len(), MAX_WALK_FILES.len());
    let long = walks.iter().zip(MAX_WALK_FILES).filter(|(walk, most)| walk.files.len() > **most);
    let long = long.map(|(walk, most)| format!("{}: {} of {most}", walk.heading, walk.files.len()));
    fail_with(&long.collect::<Vec<_>>(), "a journey passes through fewer files");
}

#[test]
fn markdown_is_wrapped() {
    let files = tracked_files(|path| extension(path) == "md");
    let wide = files.iter().flat_map(|file| {
        let lines = markdown::wide_lines(&file.text).into_iter();
        lines.map(|(line, columns)| format!("{}:{line}: {columns} columns", file.path))
    });
    fail_with(&wide.collect::<Vec<_>>(), &format!("wrap at {} columns", markdown::MAX_COLUMNS));
}

/// Scripts of images that only tests need which are ignored without them.
const NOT_IN_TEST_SH: &[&str] = &["hack/build-flower-image.sh"];

fn images_of_tests_in(folder: &str) -> BTreeSet<String> {
    let files = tracked_files(|path| {
        extension(path) == "rs" && is_within(path, &[folder]) && path.contains("/tests/")
    });
    let mut scripts: BTreeSet<String> = files.iter().flat_map(required_scripts).collect();
    scripts.retain(|script| !NOT_IN_TEST_SH.contains(&&**script));
    scripts
}

/// A machine that never ran the tests has no image.
#[test]
fn each_level_builds_the_images_of_its_tests_first() {
    let end_to_end = images_of_tests_in("hack/e2e");
    let integration: BTreeSet<String> =
        ["cloud", "common", "edge", "examples"].into_iter().flat_map(images_of_tests_in).collect();
    assert!(!integration.is_empty() && !end_to_end.is_empty());
    for (level, last) in
        [("integration", "integration"), ("all", "integration"), ("e2e", "e2e"), ("all", "e2e")]
    {
        let mut script = Command::new(root().join("hack/test.sh"));
        if level != "all" {
            script.arg(level);
        }
        let output = script.arg("--plan").output().unwrap();
        let plan = String::from_utf8(output.stdout).unwrap();
        assert!(plan.lines().any(|line| line == last), "{plan}");
        let required = if last == "e2e" { &end_to_end } else { &integration };
        let missing = missing_scripts(&plan, last, required);
        fail_with(&missing, &format!("add them to the images of {last} in hack/test.sh"));
    }
}

#[test]
fn property_tests_are_not_repeated() {
    let configuration = fs::read_to_string(root().join(".config/nextest.toml")).unwrap();
    let files = tracked_files(|path| extension(path) == "rs");
    let repeated: Vec<String> =
        files.iter().flat_map(|file| retries::repeated(file, &configuration)).collect();
    fail_with(&repeated, "name them in .config/nextest.toml among the tests with random input");
}

/// `.ci/run` checks the age of the lines.
#[test]
fn list_of_flaky_tests_is_well_formed() {
    let list = fs::read_to_string(root().join("hack/flaky.txt")).unwrap();
    let problems = flaky::parse_known(&list).err().unwrap_or_default();
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    fail_with(&problems, "correct hack/flaky.txt");
}
