//! Tells the nodes and the API server what an object's plan says, of every kind that may run in the cluster.

use std::{collections::BTreeMap, time::Duration};

use neptune_wire::{NodeName, ObjectContent, ObjectKey};

use super::{
    apply::{self, REFUSED_RETRY, apply},
    context::Context,
    kind::Kind,
    notice::Notice,
    objects::KubernetesObjects,
    write::emit,
};
use crate::{
    error::{Class, Error},
    reason::{Finding, Reason},
};

/// What an object means for the nodes and the API server.
#[must_use]
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What each node's agent should have because of this object.
    pub downstream: BTreeMap<NodeName, BTreeMap<ObjectKey, ObjectContent>>,
    /// What the API server should have; `None` where an agent runs what the object asks for.
    pub objects: Option<KubernetesObjects>,
}

/// A kind whose objects may be made of a Deployment and a Service.
pub trait Maker: Kind {
    /// How it speaks of what it makes.
    const WORDS: Words;
}

/// How a kind speaks of what it makes in the cluster.
pub struct Words {
    /// The reason of the Event that tells of its Deployment and Service.
    pub created: &'static str,
    /// What the Deployment runs, after "the".
    pub what: &'static str,
    /// What to rename when somebody else has the name.
    pub rename: &'static str,
    /// What to do when it does not fit in a message.
    pub shorten: &'static str,
    /// The reason when the API server refuses it.
    pub refused: Reason,
}

/// Returns what stands in the way, and in `again` when to try once more.
pub async fn carry_out<O: Maker>(
    object: &O,
    key: &ObjectKey,
    plan: Plan,
    again: &mut Option<Duration>,
    context: &Context,
) -> Result<Vec<Finding>, Error> {
    let words = O::WORDS;
    let too_large = context
        .downstream()
        .set(key, plan.downstream)
        .map(|why| Finding::new(Reason::TaskTooLarge, format!("spec: {why}; {}", words.shorten)));
    let mut findings: Vec<_> = too_large.into_iter().collect();
    let (before, removals) =
        context.memory(object, |memory| (memory.applied.clone(), memory.removals));
    match apply(object, plan.objects.as_ref(), before.as_ref(), context).await {
        Ok(apply::Outcome::Done { applied, created }) => {
            context.memory(object, |memory| {
                // What was removed meanwhile has woken the object already: it is looked at again.
                memory.applied = applied.filter(|_| memory.removals == removals);
            });
            if let Some(name) = created {
                let note = format!("Deployment and Service {name} are made");
                emit(object, Notice::normal(words.created, note), context).await;
            }
        }
        Ok(apply::Outcome::NameTaken { object }) => {
            let message = format!(
                "{object} exists and belongs to somebody else; delete it, or rename {}",
                words.rename
            );
            findings.push(Finding::new(Reason::NameTaken, message));
            *again = Some(REFUSED_RETRY);
        }
        Err(error) if error.class() == Class::Refused => {
            let message = format!("the API server refuses the {}: {}", words.what, error.answer());
            findings.push(Finding::new(words.refused, message));
            *again = Some(REFUSED_RETRY);
        }
        Err(error) => return Err(error),
    }
    Ok(findings)
}
