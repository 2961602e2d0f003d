//! The images that tests need: what a test names with `require_image`, and the scripts that build
//! them, which `hack/test.sh` runs before the tests of a level.

use std::collections::BTreeSet;

use crate::TextFile;

/// The scripts that the test of a file need, with their options: `hack/build-python-image.sh
/// --numpy`. They are the last argument of each call of `require_image`.
pub fn required_scripts(file: &TextFile) -> BTreeSet<String> {
    let calls = file.text.split("require_image(").skip(1);
    calls.filter_map(|rest| last_literal(rest.split(')').next()?)).collect()
}

fn last_literal(arguments: &str) -> Option<String> {
    let mut parts = arguments.rsplit('"');
    parts.next()?;
    parts.next().map(str::to_owned)
}

/// The scripts that a plan, one step per line, does not run before this step.
pub fn missing_scripts(plan: &str, step: &str, required: &BTreeSet<String>) -> Vec<String> {
    let before: BTreeSet<&str> = plan.lines().take_while(|line| *line != step).collect();
    required.iter().filter(|script| !before.contains(&***script)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_read_from_the_calls() {
        let text = r#"use harness::docker::{docker, require_image};
fn images() {
    require_image(IMAGE, "hack/build-python-image.sh --numpy");
    require_image("neptune/digits:dev", "hack/build-digits-image.sh");
    require_image(
        serving::IMAGE,
        "hack/build-model-server-image.sh",
    );
}"#;
        let file = TextFile { path: "a.rs".to_owned(), text: text.to_owned() };
        let scripts = ["digits", "model-server", "python"].map(|name| format!("build-{name}-"));
        let required = required_scripts(&file);
        assert_eq!(required.len(), 3);
        assert!(required.iter().zip(&scripts).all(|(script, wanted)| script.contains(wanted)));
        assert!(required.contains("hack/build-python-image.sh --numpy"), "{required:?}");
    }

    #[test]
    fn script_that_runs_after_the_tests_is_missing() {
        let required = ["a.sh", "b.sh --numpy", "c.sh"].map(str::to_owned).into();
        let plan = "build\nb.sh\na.sh\nintegration\nc.sh\ne2e\n";
        assert_eq!(missing_scripts(plan, "integration", &required), ["b.sh --numpy", "c.sh"]);
        assert_eq!(missing_scripts(plan, "e2e", &required), ["b.sh --numpy"]);
    }
}
