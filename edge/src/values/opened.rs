//! The opened Secrets and the `ConfigMap`s of programs: opens those of programs that are new or
//! changed.

use std::collections::BTreeMap;

use neptune_agent_core::{
    domain::{node_context::NodeContext, node_program::NodeProgram, problem::Problem},
    values::resolve::WorkerValues,
    volumes::mounts::files_dir,
};
use neptune_seal::SealKey;
use neptune_wire::{ContainerProgram, NodeName, NodeProblem, WorkerName};

use super::{
    opener::{open_values, version},
    runtime_files::{VersionedFiles, WantedFiles},
};

/// What programs get of their Secrets and `ConfigMap`s, by program.
#[derive(Debug)]
pub struct OpenedValues<K> {
    /// The programs whose values were opened, as they were then.
    sources: BTreeMap<K, Source>,
    opened: BTreeMap<K, Result<WorkerValues, Problem>>,
}

/// The owned form of a [`NodeProgram`].
#[derive(Debug)]
struct Source {
    uid: String,
    name: WorkerName,
    program: ContainerProgram,
}

/// The versions of a model server whose values are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum VersionRole {
    /// The version that is wanted.
    Target,
    /// The version that runs.
    Current,
    /// The version to which the server may return.
    LastGood,
}

/// The values of model servers.
pub type ServerValues = OpenedValues<(WorkerName, VersionRole)>;

impl<K> Default for OpenedValues<K> {
    fn default() -> Self {
        Self { sources: BTreeMap::new(), opened: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> OpenedValues<K> {
    /// The values of the programs that have some, or why they cannot be read.
    pub fn all(&self) -> &BTreeMap<K, Result<WorkerValues, Problem>> {
        &self.opened
    }

    /// Lets all values be opened again.
    pub fn forget(&mut self) {
        self.sources.clear();
    }

    /// Opens the values of the programs that are new or changed, and forgets the others. Returns
    /// whether something changed.
    pub fn open<'a>(
        &mut self,
        programs: impl Iterator<Item = (K, NodeProgram<'a>)>,
        node: &NodeName,
        key: Result<&SealKey, &NodeProblem>,
    ) -> bool {
        let with_values = programs.filter(|(_, program)| program.program.has_values());
        let wanted: BTreeMap<K, NodeProgram<'a>> = with_values.collect();
        let count = self.sources.len();
        self.sources.retain(|at, source| wanted.get(at) == Some(&source.program()));
        let mut is_changed = self.sources.len() != count;
        self.opened.retain(|at, _| wanted.contains_key(at));
        for (at, program) in wanted {
            if !self.sources.contains_key(&at) {
                self.opened.insert(at.clone(), open_values(node, program, key));
                self.sources.insert(at, program.into());
                is_changed = true;
            }
        }
        is_changed
    }
}

/// Adds the files of a program with these values, by directory.
pub fn add_files(
    files: &mut WantedFiles,
    (program, values): (NodeProgram<'_>, &WorkerValues),
    context: &NodeContext,
    key: Option<&SealKey>,
) {
    for mount in &program.program.mounts {
        if let Some(own) = values.files.get(&mount.name) {
            let versioned = VersionedFiles { version: version(own, key), files: own.clone() };
            files.insert(files_dir(program, mount, context), versioned);
        }
    }
}

impl ServerValues {
    /// What a model server gets with this program; `None` if that names no values, or if they were
    /// not opened yet.
    pub fn of_program(
        &self,
        name: &WorkerName,
        program: &ContainerProgram,
    ) -> Option<Result<&WorkerValues, &Problem>> {
        let roles = VersionRole::ALL.map(|role| (name.clone(), role));
        let mut roles = roles.iter();
        let at = roles.find(|at| self.sources.get(at).is_some_and(|it| it.program == *program))?;
        self.opened.get(at).map(Result::as_ref)
    }

    /// Returns a text of a model server without the values of its Secrets.
    pub fn mask(&self, name: &WorkerName, text: String) -> String {
        let roles = VersionRole::ALL.map(|role| (name.clone(), role));
        let values = roles.iter().filter_map(|at| self.opened.get(at)?.as_ref().ok());
        values.fold(text, |text, values| values.mask.apply(text))
    }
}

impl VersionRole {
    const ALL: [Self; 3] = [Self::Target, Self::Current, Self::LastGood];
}

impl Source {
    fn program(&self) -> NodeProgram<'_> {
        NodeProgram { uid: &self.uid, name: &self.name, program: &self.program }
    }
}

impl From<NodeProgram<'_>> for Source {
    fn from(NodeProgram { uid, name, program }: NodeProgram<'_>) -> Self {
        Self { uid: uid.to_owned(), name: name.clone(), program: program.clone() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_agent_core::fixtures::node_context;
    use neptune_seal::{SecretBytes, seal};
    use neptune_wire::{SealScope, WorkerReason};
    use serde_json::json;

    use super::*;

    fn name() -> WorkerName {
        "m-server-1".parse().unwrap()
    }

    /// A program with a variable of a Secret, sealed to this key.
    fn program(value: &str, key: &SealKey) -> ContainerProgram {
        let mut program: ContainerProgram = serde_json::from_value(json!({
            "image": "i",
            "mounts": [{"name": "camera", "path": "/camera", "secret": "camera"}],
            "secretEnv": [{"name": "URL", "secret": "camera", "key": "url"}],
            "secrets": [{
                "name": "camera", "version": value, "keys": ["url"], "sealKey": key.public_key().id(),
            }],
        }))
        .unwrap();
        let values = [("url".to_owned(), SecretBytes::new(value.as_bytes().to_vec()))].into();
        let (node, name) = (node_context().node, name());
        let scope = SealScope::new(&node, "uid", &name, &program, &program.secrets[0]);
        program.secrets[0].sealed = seal(key.public_key(), &scope, &values).unwrap();
        program
    }

    /// Opens the programs of the versions of a server. Returns whether something changed.
    fn open(
        values: &mut ServerValues,
        programs: &[(VersionRole, &ContainerProgram)],
        key: &SealKey,
    ) -> bool {
        let name = name();
        let programs = programs.iter().map(|(role, program)| {
            ((name.clone(), *role), NodeProgram { uid: "uid", name: &name, program })
        });
        values.open(programs, &node_context().node, Ok(key))
    }

    #[test]
    fn each_version_of_a_server_has_its_own_values() {
        use VersionRole::{Current, Target};
        let (key, other) = (SealKey::generate(), SealKey::generate());
        let (old, new) = (program("rtsp://old", &key), program("rtsp://new", &key));
        let unreadable = program("rtsp://other", &other);
        let mut values = ServerValues::default();
        assert!(open(&mut values, &[(Current, &old), (Target, &new)], &key));
        assert!(!open(&mut values, &[(Current, &old), (Target, &new)], &key));
        let fingerprint = |values: &ServerValues, program: &ContainerProgram| {
            let opened = values.of_program(&name(), program).unwrap().unwrap();
            opened.env.as_ref().unwrap().fingerprint.clone()
        };
        let before = fingerprint(&values, &old);
        assert_ne!(fingerprint(&values, &new), before);
        let text = || "rtsp://old and rtsp://new".to_owned();
        assert_eq!(values.mask(&name(), text()), "*** and ***");
        assert_eq!(values.mask(&"another".parse().unwrap(), text()), text());

        // The next target cannot be read: the version that runs keeps what it has.
        assert!(open(&mut values, &[(Current, &old), (Target, &unreadable)], &key));
        let problem = values.of_program(&name(), &unreadable).unwrap().unwrap_err();
        assert_eq!(problem.reason, WorkerReason::SecretUnreadable);
        assert_eq!(fingerprint(&values, &old), before);
        assert_eq!(values.of_program(&name(), &new), None);

        // The target became the version that runs.
        assert!(open(&mut values, &[(Current, &new), (Target, &new)], &key));
        assert_ne!(fingerprint(&values, &new), before);
        assert!(open(&mut values, &[], &key));
        assert_eq!(values.of_program(&name(), &new), None);
    }

    #[test]
    fn values_are_opened_again_once_there_is_another_key() {
        let key = SealKey::generate();
        let sealed = program("rtsp://h", &key);
        let mut values = ServerValues::default();
        assert!(open(&mut values, &[(VersionRole::Current, &sealed)], &SealKey::generate()));
        assert!(values.of_program(&name(), &sealed).unwrap().is_err());
        values.forget();
        assert!(open(&mut values, &[(VersionRole::Current, &sealed)], &key));
        assert!(values.of_program(&name(), &sealed).unwrap().is_ok());
        let mut files = WantedFiles::new();
        let opened = values.of_program(&name(), &sealed).unwrap().unwrap();
        let (name, context) = (name(), node_context());
        let owner = NodeProgram { uid: "uid", name: &name, program: &sealed };
        add_files(&mut files, (owner, opened), &context, Some(&key));
        let dirs: Vec<_> = files.keys().map(|dir| dir.display().to_string()).collect();
        assert_eq!(dirs, ["/run/neptune/edge0/uid/m-server-1/camera"]);
    }
}
