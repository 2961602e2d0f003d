//! The shell blocks of the pages that users read. The info string of each block has the name of the
//! test that runs it, or the reason why none does:
//!
//! - `sh test=NAME`: the blocks of one name in a page are one script, which `hack/test-docs.sh`
//!   runs. The first of them may choose what the script needs: `with=cluster` or `with=fleet`.
//! - `sh skip="REASON"`: it is not run.
//!
//! A block within an HTML comment is for the test alone: it prepares, or checks a result.

use crate::{TextFile, extension, is_within};

/// Where the blocks of a script run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sandbox {
    /// A folder with the repository's files, and a PATH with the programs.
    #[default]
    Shell,
    /// Also an empty Kubernetes API.
    Cluster,
    /// Also the CRDs, a broker, a controller, and the agents of two nodes.
    Fleet,
}

impl Sandbox {
    /// The value of `with=`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::Cluster => "cluster",
            Self::Fleet => "fleet",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [Self::Shell, Self::Cluster, Self::Fleet].into_iter().find(|sandbox| sandbox.name() == name)
    }
}

/// What happens with a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// It is part of the script of this name.
    Test { name: String, sandbox: Option<Sandbox> },
    /// It is not run, for this reason.
    Skip(String),
}

/// A shell block of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The line of its fence, from 1.
    pub line: usize,
    /// Its lines, without the indentation of the fence.
    pub text: String,
    pub run: Run,
}

/// The blocks of one name in a page, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    pub name: String,
    pub sandbox: Sandbox,
    /// The line of the first block.
    pub line: usize,
    /// Each line of the blocks. Lines of a block follow a comment with the line of its fence.
    pub text: String,
}

/// Whether the blocks of a file have to have a test or a reason.
pub fn is_checked(path: &str) -> bool {
    let is_page = path == "README.md"
        || path == "build/acl/README.md"
        || is_within(path, &["docs"]) && !is_within(path, &["docs/adr"])
        || is_within(path, &["examples"]) && path.ends_with("/README.md");
    is_page && extension(path) == "md"
}

/// The blocks of a page: the line of the fence, the info string, and the lines without the
/// indentation of the fence.
fn fences(text: &str) -> Vec<(usize, &str, String)> {
    let mut fences = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let indentation = line.len() - line.trim_start().len();
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        let mut text = String::new();
        for (_, line) in lines.by_ref().take_while(|(_, line)| line.trim() != "```") {
            text.push_str(line.get(indentation..).unwrap_or_default());
            text.push('\n');
        }
        fences.push((index + 1, info, text));
    }
    fences
}

/// The shell blocks of a page, and what is wrong with its info strings.
pub fn blocks(page: &TextFile) -> (Vec<Block>, Vec<String>) {
    let (mut blocks, mut problems) = (Vec::new(), Vec::new());
    for (line, info, text) in fences(&page.text) {
        match parse(info) {
            Ok(Some(run)) => blocks.push(Block { line, text, run }),
            Ok(None) => {}
            Err(problem) => problems.push(format!("{}:{line}: {problem}", page.path)),
        }
    }
    (blocks, problems)
}

/// The YAML blocks of a page that are whole manifests, with the lines of their fences.
pub fn manifests(page: &TextFile) -> Vec<(usize, String)> {
    let is_manifest = |text: &str| text.lines().any(|line| line.starts_with("apiVersion:"));
    let fences = fences(&page.text).into_iter();
    let manifests = fences.filter(|(_, info, text)| info.trim() == "yaml" && is_manifest(text));
    manifests.map(|(line, _, text)| (line, text)).collect()
}

/// What an info string requests; `None` for other languages.
fn parse(info: &str) -> Result<Option<Run>, String> {
    let (language, rest) = info.trim().split_once(' ').unwrap_or((info.trim(), ""));
    match language {
        "sh" => {}
        "bash" | "shell" | "zsh" => return Err(format!("{language} instead of sh")),
        _ if rest.is_empty() => return Ok(None),
        _ => return Err(format!("attributes after {language}: only sh has any")),
    }
    if let Some(reason) = rest.strip_prefix("skip=\"") {
        let reason = reason.strip_suffix('"').unwrap_or_default();
        let is_reason = reason.split_whitespace().count() > 1 && !reason.contains('"');
        return is_reason
            .then(|| Some(Run::Skip(reason.to_owned())))
            .ok_or_else(|| "skip without a reason: skip=\"REASON\"".to_owned());
    }
    let (mut name, mut sandbox) = (None, None);
    for attribute in rest.split_whitespace() {
        match attribute.split_once('=') {
            Some(("test", value)) if is_name(value) => name = Some(value.to_owned()),
            Some(("with", value)) if Sandbox::parse(value).is_some() => {
                sandbox = Sandbox::parse(value);
            }
            _ => {
                return Err(format!(
                    "{attribute}: expected test=NAME, with=SANDBOX or skip=\"REASON\""
                ));
            }
        }
    }
    let name = name.ok_or("a shell block without test=NAME or skip=\"REASON\"")?;
    Ok(Some(Run::Test { name, sandbox }))
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// The scripts of a page, and what is wrong with them.
pub fn scripts(page: &TextFile) -> (Vec<Script>, Vec<String>) {
    let (blocks, mut problems) = blocks(page);
    let mut scripts: Vec<Script> = Vec::new();
    for Block { line, text, run } in blocks {
        let Run::Test { name, sandbox } = run else { continue };
        let text = format!("# {}:{line}\n{text}", page.path);
        if let Some(script) = scripts.iter_mut().find(|script| script.name == name) {
            if sandbox.is_some() {
                problems
                    .push(format!("{}:{line}: with= after the first block of {name}", page.path));
            }
            script.text.push_str(&text);
        } else {
            scripts.push(Script { name, sandbox: sandbox.unwrap_or_default(), line, text });
        }
    }
    (scripts, problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> TextFile {
        TextFile { path: "docs/a.md".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn blocks_of_one_name_are_one_script() {
        let text = "```sh test=a with=fleet\none\n```\n1. b\n   ```sh test=b\n   two\n     three\n   ```\n\
                    ```\nplain\n```\n<!--\n```sh test=a\nfour\n```\n-->\n```sh skip=\"needs a GPU\"\nfive\n```\n";
        let (scripts, problems) = scripts(&page(text));
        assert!(problems.is_empty(), "{problems:?}");
        let texts: Vec<_> =
            scripts.iter().map(|s| (&*s.name, s.sandbox, s.line, &*s.text)).collect();
        let first = "# docs/a.md:1\none\n# docs/a.md:13\nfour\n";
        let second = "# docs/a.md:5\ntwo\n  three\n";
        assert_eq!(texts, [("a", Sandbox::Fleet, 1, first), ("b", Sandbox::Shell, 5, second)]);
        let skipped = blocks(&page(text)).0.pop().unwrap();
        assert_eq!(skipped.run, Run::Skip("needs a GPU".to_owned()));
    }

    #[test]
    fn block_without_test_or_reason_is_refused() {
        let wrong = [
            "sh",
            "bash",
            "bash test=a",
            "sh skip",
            "sh skip=\"\"",
            "sh skip=\"later\"",
            "sh test=",
            "sh test=A",
            "sh test=a with=moon",
            "sh with=fleet",
            "sh test=a skip=\"not now\"",
            "yaml test=a",
        ];
        for info in wrong {
            let (_, problems) = blocks(&page(&format!("a\n```{info}\nb\n```\n")));
            assert!(problems.iter().all(|text| text.starts_with("docs/a.md:2: ")), "{problems:?}");
            assert_eq!(problems.len(), 1, "{info}");
        }
        let twice = page("```sh test=a\n```\n```sh test=a with=cluster\n```\n");
        assert_eq!(scripts(&twice).1, ["docs/a.md:3: with= after the first block of a"]);
    }

    #[test]
    fn manifests_are_whole_objects() {
        let text = "```yaml\nspec:\n  apiVersion: no\n```\n- a\n\n  ```yaml\n  apiVersion: v1\n  kind: A\n  ```\n";
        let expected = (7, "apiVersion: v1\nkind: A\n".to_owned());
        assert_eq!(manifests(&page(text)), [expected]);
    }

    #[test]
    fn pages_for_users_are_checked() {
        for path in ["README.md", "docs/install.md", "examples/digits/README.md"] {
            assert!(is_checked(path), "{path}");
        }
        for path in ["docs/adr/README.md", "hack/README.md", "docs/asyncapi.yaml"] {
            assert!(!is_checked(path), "{path}");
        }
    }
}
