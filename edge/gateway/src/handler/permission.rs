//! Permission for a call of the cloud, and what the breaker learns from its end.

use std::{sync::Arc, time::Instant};

use neptune_cascade::breaker::{Failure, Permit};
use tracing::info;

use crate::{
    clock,
    decision::{EndedOutage, RefusedCall},
    gateway::Gateway,
};

/// Permission for a call. If the client goes away meanwhile, the next one may call.
#[derive(Debug)]
pub struct Permission {
    pub gateway: Arc<Gateway>,
    permit: Option<Permit>,
    /// Time at which the call began.
    pub asked: Instant,
}

impl Permission {
    /// Asks for permission; `None` if the cloud is left alone.
    pub fn ask(gateway: &Arc<Gateway>) -> Option<Self> {
        let asked = clock::now();
        let permit = gateway.decisions().permit(asked).ok()?;
        Some(Self { gateway: Arc::clone(gateway), permit: Some(permit), asked })
    }

    pub fn succeeded(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let ended = self.gateway.decisions().succeeded(permit, clock::now());
        if let Some(EndedOutage { lasted, samples }) = ended {
            let seconds = lasted.as_secs_f64();
            info!(
                "the cloud answers again after {seconds:.1} s, in which it did not answer {samples} \
                 hard samples"
            );
        }
    }

    /// Whether the refused calls in a row are a problem since then.
    pub fn refused(&mut self, refusal: RefusedCall) -> bool {
        self.permit.take().is_some_and(|permit| {
            self.gateway.decisions().refused_by_cloud(permit, refusal, clock::now())
        })
    }

    /// An answer came, or begins. Whether this ends the problem of refused calls.
    pub fn accepted(&self) -> bool {
        let now = clock::now();
        self.permit.is_some_and(|permit| self.gateway.decisions().accepted_by_cloud(permit, now))
    }

    /// Records that the client's own deadline ended the call.
    pub fn cut(&mut self) {
        if let Some(permit) = self.permit.take() {
            let now = clock::now();
            let time = now.saturating_duration_since(self.asked);
            self.gateway.decisions().cut(permit, time, now);
        }
    }

    /// Whether the cloud is left alone since then.
    pub fn failed(&mut self, failure: Failure) -> bool {
        self.permit.take().is_some_and(|permit| {
            let (now, random) = (clock::now(), clock::random());
            self.gateway.decisions().failed(permit, failure, now, random)
        })
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.gateway.decisions().abandoned(permit);
        }
    }
}
