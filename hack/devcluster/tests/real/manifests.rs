//! The manifests of the repository that the CRD server knows: samples, examples, documents and
//! files of the installation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// What is searched for YAML files, and for YAML blocks of Markdown files.
const PLACES: [&str; 5] = ["README.md", "docs", "examples", "build", "common/api/tests/samples"];

/// Replaces the placeholders that the instructions of the examples name.
const PLACEHOLDERS: [(&str, &str); 3] = [
    ("${MODEL_SERVER}", "http://192.0.2.1:8000"),
    ("${SCRIPT_SERVER}", "http://192.0.2.1:8000"),
    ("${SCRIPT_SHA256}", "0000000000000000000000000000000000000000000000000000000000000000"),
];

/// An object and where it is written.
pub struct Manifest {
    pub place: String,
    pub object: Value,
}

impl Manifest {
    pub fn is_definition(&self) -> bool {
        self.object["kind"] == "CustomResourceDefinition"
    }
}

/// The kinds of the definitions in `crds`: the collection of each kind and group, and whether it is in
/// a namespace.
pub struct Kinds(BTreeMap<(String, String), (String, bool)>);

impl Kinds {
    pub fn new(definitions: &[Value]) -> Self {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let own = definitions.iter().map(|definition| {
            let spec = &definition["spec"];
            let key = (text(&spec["group"]), text(&spec["names"]["kind"]));
            (key, (text(&spec["names"]["plural"]), spec["scope"] == "Namespaced"))
        });
        let (group, kind) = ("apiextensions.k8s.io", "CustomResourceDefinition");
        let definition = ("customresourcedefinitions".to_owned(), false);
        let definition = ((group.to_owned(), kind.to_owned()), definition);
        Self(own.chain([definition]).collect())
    }

    /// The path of an object's collection; none for kinds that the CRD server does not serve.
    pub fn collection(&self, object: &Value) -> Option<String> {
        let version = object["apiVersion"].as_str()?;
        let (group, _) = version.split_once('/')?;
        let key = (group.to_owned(), object["kind"].as_str()?.to_owned());
        let (plural, is_namespaced) = self.0.get(&key)?;
        if !is_namespaced {
            return Some(format!("/apis/{version}/{plural}"));
        }
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        Some(format!("/apis/{version}/namespaces/{namespace}/{plural}"))
    }

    /// Every manifest of the repository and, if `SPECIFICATION` is a folder, every sample in it.
    /// The definitions there are drafts.
    pub fn manifests(&self) -> Vec<Manifest> {
        let (mut files, mut specification) = (Vec::new(), Vec::new());
        for place in PLACES {
            collect(&root().join(place), &mut files);
        }
        if let Some(folder) = std::env::var_os("SPECIFICATION").map(PathBuf::from) {
            collect(&folder, &mut specification);
        }
        let samples = specification.iter().flat_map(|file| documents_of(file));
        let samples = samples.filter(|manifest| !manifest.is_definition());
        let documents = files.iter().flat_map(|file| documents_of(file)).chain(samples);
        documents.filter(|manifest| self.collection(&manifest.object).is_some()).collect()
    }
}

/// The YAML and Markdown files below a path; the templates of the chart are no YAML.
fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() && !path.ends_with("templates") {
        let entries = std::fs::read_dir(path).unwrap();
        let mut entries: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for entry in &entries {
            collect(entry, files);
        }
    }
    if path.is_file() && path.extension().is_some_and(|it| it == "yaml" || it == "md") {
        files.push(path.to_owned());
    }
}

fn documents_of(file: &Path) -> Vec<Manifest> {
    let text = std::fs::read_to_string(file).unwrap();
    let place = file.strip_prefix(root()).unwrap_or(file).display().to_string();
    let blocks = match file.extension().and_then(|extension| extension.to_str()) {
        Some("md") => yaml_blocks(&text),
        _ => vec![(1, text)],
    };
    let manifest = |place: &str, object: Value| Manifest { place: place.to_owned(), object };
    blocks
        .iter()
        .flat_map(|(line, text)| {
            let place = format!("{place}:{line}");
            parse(&place, text).into_iter().map(move |object| manifest(&place, object))
        })
        .collect()
}

/// The YAML blocks of a Markdown text with the lines before them, without their indentation.
fn yaml_blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        match &mut open {
            None if trimmed == "```yaml" => {
                let indentation = line.len() - line.trim_start().len();
                open = Some((number + 1, indentation, String::new()));
            }
            None => {}
            Some(_) if trimmed == "```" => {
                blocks.extend(open.take().map(|(line, _, text)| (line, text)));
            }
            Some((_, indentation, block)) => {
                block.push_str(line.get(*indentation..).unwrap_or_default());
                block.push('\n');
            }
        }
    }
    blocks
}

fn parse(place: &str, text: &str) -> Vec<Value> {
    let text = PLACEHOLDERS.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    text.split("\n---\n")
        .filter(|text| text.lines().any(|line| !line.is_empty() && !line.starts_with('#')))
        .map(|text| serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{place}: {error}")))
        .collect()
}

/// All documents of a file.
pub fn documents(file: &Path) -> Vec<Value> {
    documents_of(file).into_iter().map(|manifest| manifest.object).collect()
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn yaml_blocks_of_markdown_are_found_with_their_lines() {
    let text =
        "a\n```yaml\nb: 1\n```\n```sh\nc\n```\n1. d\n\n   ```yaml\n   e:\n     f: 2\n   ```\n";
    let blocks = yaml_blocks(text);
    assert_eq!(blocks, [(2, "b: 1\n".to_owned()), (10, "e:\n  f: 2\n".to_owned())]);
}

#[test]
fn manifests_of_documents_and_examples_are_found() {
    let definitions: Vec<Value> = ["datasets.edgeai.io", "jointinferenceservices.neptune.io"]
        .iter()
        .flat_map(|name| documents(&root().join(format!("crds/{name}.yaml"))))
        .collect();
    let manifests = Kinds::new(&definitions).manifests();
    for part in ["docs/datasets.md", "examples/digits/", "build/deploy/crds/", "tests/samples/"] {
        assert!(manifests.iter().any(|manifest| manifest.place.contains(part)), "{part}");
    }
}
