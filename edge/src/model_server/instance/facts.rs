//! Turns what is known of a model server into the facts of a rollout decision.

use neptune_agent_core::{
    desired::WantedServer,
    domain::{
        artifact::{DownloadState, ImageState},
        served_version::ServedVersion,
        server_part::ServerPart,
    },
    model_server::rollout::{InstanceState, RolloutDecision, RolloutFacts, decide},
};
use neptune_edge_engine::image_pulls::ImagePulls;
use neptune_wire::{TRANSFORMER_FAILED, WorkerReason};

use super::{InstanceFacts, InstanceInputs, ModelServerInstance};
use crate::event::AgentEvent;

impl ModelServerInstance {
    /// Decides the next step of the rollout from the facts.
    pub fn decide(
        &self,
        wanted: &WantedServer,
        facts: &InstanceFacts<'_>,
        InstanceInputs { downloads, values, .. }: &InstanceInputs<'_>,
        images: &ImagePulls<AgentEvent>,
    ) -> RolloutDecision {
        let download = match self.source(&wanted.serving) {
            Some(source) if wanted.refusal.is_none() => downloads.state(&source),
            _ => DownloadState::Ready,
        };
        let mut images = self.awaited_images(wanted).map(|image| (image, images.state(image)));
        let (awaited_image, image) = images
            .find(|(_, state)| *state != ImageState::Ready)
            .unwrap_or((&wanted.serving.program.image, ImageState::Ready));
        let program = Some(&wanted.serving.program).filter(|_| wanted.refusal.is_none());
        let values = program.and_then(|program| values.of_program(&wanted.serving.name, program));
        let reason = facts.attempts.problem.as_ref().map(|problem| format!("{:?}", problem.reason));
        let state = |version: &Option<ServedVersion>| {
            self.state_of(version.as_ref(), facts, reason.as_deref().unwrap_or_default())
        };
        let facts = RolloutFacts {
            target: &wanted.serving,
            refusal: wanted.refusal.as_deref(),
            download,
            awaited_image,
            image,
            values: values.and_then(Result::err),
            current: state(&self.rollout.current),
            last_good: state(&self.rollout.last_good),
            draining: state(&self.rollout.draining),
            failures: facts
                .beside
                .values()
                .fold(facts.attempts.failures, |most, attempts| most.max(attempts.failures)),
            now: facts.now,
            wall: facts.wall,
        };
        decide(&self.rollout, &facts)
    }

    fn state_of<'a>(
        &'a self,
        version: Option<&ServedVersion>,
        facts: &InstanceFacts<'a>,
        reason: &'a str,
    ) -> InstanceState<'a> {
        if let Some((_, probes)) = version.and_then(|version| self.probes.get(version.id())) {
            return InstanceState::Up(probes);
        }
        let problem = facts.attempts.problem.as_ref();
        let message = facts.engine_problem.or(problem.map(|problem| problem.message.as_str()));
        match problem.map(|problem| problem.reason) {
            Some(
                WorkerReason::ContainerRefused
                | WorkerReason::EngineUnsuited
                | WorkerReason::VolumeNotAllowed,
            ) => InstanceState::Down { reason, message: message.unwrap_or_default() },
            Some(WorkerReason::CrashLoopBackOff | WorkerReason::OutOfMemory) => {
                let hash = self.container().map(|container| &container.hash);
                match facts.attempts.ending_of(hash) {
                    Some(message) => InstanceState::Down { reason, message },
                    None => InstanceState::Absent(message),
                }
            }
            None => self.state_of_transformer(facts).unwrap_or(InstanceState::Absent(message)),
            _ => InstanceState::Absent(message),
        }
    }

    /// Why the transformer or its proxy does not run; `None` without a problem.
    fn state_of_transformer<'a>(&self, facts: &InstanceFacts<'a>) -> Option<InstanceState<'a>> {
        let current = self.current()?;
        let parts = [ServerPart::Transformer(current.slot), ServerPart::Proxy];
        let mut parts = parts.into_iter().filter(|part| current.part(*part).is_some());
        let (part, attempts, problem) = parts.find_map(|part| {
            let attempts = *facts.beside.get(&part)?;
            Some((part, attempts, attempts.problem.as_ref()?))
        })?;
        let down = |message| InstanceState::Down { reason: TRANSFORMER_FAILED, message };
        Some(match problem.reason {
            WorkerReason::ContainerRefused | WorkerReason::ScriptMissing => down(&problem.message),
            WorkerReason::CrashLoopBackOff | WorkerReason::OutOfMemory => {
                match attempts.ending_of(self.hashes.get(&part)) {
                    Some(message) => down(message),
                    None => InstanceState::Absent(Some(&problem.message)),
                }
            }
            _ => InstanceState::Absent(Some(&problem.message)),
        })
    }
}
