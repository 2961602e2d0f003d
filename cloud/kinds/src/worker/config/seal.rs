//! Seals the values of a plan: the plan has everything but the ciphertexts, which need random numbers.

use std::{collections::BTreeMap, sync::Arc};

use neptune_wire::{
    ContainerProgram, EncodedContent, NodeName, ObjectContent, ObjectKey, SealPublicKey, SealScope,
    SecretValues, WorkerName,
};

use crate::fleet::{NodeContents, Requirements};

/// The values that have to be sealed, by node.
pub type Seals = BTreeMap<NodeName, Vec<SealRequest>>;

/// The values of a Secret that have to be sealed for a worker or a model server. `Debug` prints their lengths only.
#[derive(Debug, Clone, PartialEq)]
pub struct SealRequest {
    /// The worker or server that gets them.
    pub worker: WorkerName,
    /// The name of the Secret.
    pub secret: String,
    /// The key of the node.
    pub key: SealPublicKey,
    /// The values of its keys.
    pub values: Arc<SecretValues>,
}

/// Puts the ciphertexts into the content of an object on each node. `known` is what the object required
/// there before: a content with the same hash stays as it is, and nothing is sealed.
pub fn seal_requirements(
    requirements: &mut Requirements,
    object: &ObjectKey,
    seals: &Seals,
    known: impl Fn(&NodeName) -> Option<NodeContents>,
    seal: impl Fn(&SealPublicKey, &SealScope<'_>, &SecretValues) -> Option<String>,
) {
    for (node, requests) in seals {
        let Some(contents) = requirements.get_mut(node) else { continue };
        let Some(planned) = contents.get(object) else { continue };
        let known = known(node);
        if let Some(known) = known.as_ref().filter(|known| is_same(known, contents)) {
            *contents = NodeContents::clone(known);
            continue;
        }
        let known = known.as_ref().and_then(|known| known.get(object));
        let known = known.filter(|known| known.is_same(planned)).cloned();
        let sealed = known.unwrap_or_else(|| {
            EncodedContent::new(&sealed_content(planned.content(), node, requests, &seal))
        });
        let mut own = (**contents).clone();
        own.insert(object.clone(), sealed);
        *contents = NodeContents::new(own);
    }
}

/// Whether two nodes' contents are equal, except for the ciphertexts.
fn is_same(one: &NodeContents, other: &NodeContents) -> bool {
    let mut pairs = one.iter().zip(other.iter());
    one.len() == other.len()
        && pairs.all(|((key, content), (other, planned))| key == other && content.is_same(planned))
}

fn sealed_content(
    mut content: ObjectContent,
    node: &NodeName,
    requests: &[SealRequest],
    seal: impl Fn(&SealPublicKey, &SealScope<'_>, &SecretValues) -> Option<String>,
) -> ObjectContent {
    let uid = content.metadata.uid.clone();
    for SealRequest { worker: name, secret, key, values } in requests {
        let Some(program) = program_of(&mut content, name) else { continue };
        let mut secrets = program.secrets.iter();
        let Some(at) = secrets.position(|it| it.name == *secret) else { continue };
        let scope = SealScope::new(node, &uid, name, program, &program.secrets[at]);
        // Without a ciphertext the agent reports that it cannot read the Secret.
        let sealed = seal(key, &scope, values).unwrap_or_default();
        program.secrets[at].sealed = sealed;
    }
    content
}

/// The program of the worker or model server that has this name.
fn program_of<'a>(
    content: &'a mut ObjectContent,
    name: &WorkerName,
) -> Option<&'a mut ContainerProgram> {
    let mut workers = content.workers.iter_mut();
    let worker = workers.find(|worker| worker.name == *name).map(|worker| &mut worker.program);
    let server = content.serving.as_mut().filter(|serving| serving.name == *name);
    worker.or_else(|| server.map(|serving| &mut serving.program))
}
