//! Compares the metrics of a program with its section of `docs/metrics.md`, and checks them with
//! `promtool` where it is installed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use crate::workspace;

const PAGE: &str = "docs/metrics.md";
/// The variable with which the test writes the page.
const UPDATE: &str = "UPDATE_METRICS_DOC";

/// A family of the text format of Prometheus.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// Checks the metrics of a program: `page` is in the text format of Prometheus, and has a sample of
/// each of its metrics.
///
/// # Panics
/// The section of the program differs, or `promtool` reports something.
pub fn check(program: &str, page: &str) {
    check_with_promtool(page);
    let path = workspace::root().join(PAGE);
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- generated: {program} -->\n"), "<!-- end -->\n");
    let missing = || panic!("{PAGE} has no section {begin}");
    let (before, rest) = text.split_once(&begin).unwrap_or_else(missing);
    let (_, after) = rest.split_once(end).unwrap_or_else(missing);
    let expected = format!("{before}{begin}{}{end}{after}", table(page));
    if text == expected {
        return;
    }
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, expected).unwrap();
        return;
    }
    panic!(
        "{PAGE} differs from the metrics of {program}; write it with {UPDATE}=1 cargo test -p {program} --lib metrics\n{}",
        table(page)
    );
}

fn check_with_promtool(page: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // It is a tool of the Debian package prometheus.
    let Ok(mut promtool) = command.spawn() else {
        eprintln!("promtool is not installed; the names of metrics are not checked");
        return;
    };
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(output.status.success() && printed.is_empty(), "promtool: {printed}\n{page}");
}

/// The table of all families, by name.
fn table(page: &str) -> String {
    let mut text = "| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n".to_owned();
    for (name, Family { kind, help, labels }) in families(page) {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = labels.join(", ");
        writeln!(text, "| `{name}` | {kind} | {labels} | {help} |").unwrap();
    }
    text
}

fn families(page: &str) -> BTreeMap<&str, Family> {
    let mut families = BTreeMap::<&str, Family>::new();
    let mut name = "";
    for line in page.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let word = words.next().unwrap_or_default();
            name = words.next().unwrap_or_default();
            let family = families.entry(name).or_default();
            let rest = words.next().unwrap_or_default();
            match word {
                "HELP" => rest.trim_end_matches('.').clone_into(&mut family.help),
                _ => rest.clone_into(&mut family.kind),
            }
        } else if let Some(family) = families.get_mut(name) {
            family.labels.extend(labels(line).into_iter().filter(|label| label != "le"));
        }
    }
    families
}

/// The names of the labels of a sample.
fn labels(sample: &str) -> Vec<String> {
    let Some((_, mut rest)) = sample.split_once('{') else { return Vec::new() };
    let mut names = Vec::new();
    while let Some((name, value)) = rest.split_once("=\"") {
        names.push(name.trim_start_matches(',').to_owned());
        let mut is_escaped = false;
        let end = value.find(|c| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        });
        rest = end.map_or("", |end| &value[end + 1..]);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_name_type_labels_and_help() {
        let page = "# HELP b_total Answers.\n# TYPE b_total counter\nb_total{x=\"1\\\"2\",y=\"\"} 1\n\
            # HELP a_seconds Time.\n# TYPE a_seconds histogram\na_seconds_bucket{z=\"a=\\\"b\",le=\"1\"} 0\n";
        assert_eq!(
            table(page),
            "| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n\
             | `a_seconds` | histogram | `z` | Time |\n| `b_total` | counter | `x`, `y` | Answers |\n"
        );
    }
}
