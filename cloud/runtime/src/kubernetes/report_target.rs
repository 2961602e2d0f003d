//! Where the cloud workers in Pods report: the address of each service, its token, and the keys from
//! which tokens are derived. Pure, except that the keys are shared.

use std::{sync::Arc, time::Instant};

use neptune_cloud_fleet::token_key::{RotatingKey, TokenKey};
use neptune_cloud_kinds::kubernetes::report_access::{POD_UID, ReportAccess};
use neptune_wire::TopicPrefix;
use parking_lot::Mutex;

/// Where cloud workers in Pods report. Cheap to clone; the keys are shared.
#[derive(Debug, Clone)]
pub struct ReportTarget {
    url: String,
    prefix: TopicPrefix,
    keys: Arc<Mutex<RotatingKey>>,
}

impl ReportTarget {
    /// Makes the target. `url` is the receiver, as Pods reach it.
    pub fn new(url: String, prefix: TopicPrefix, key: TokenKey) -> Self {
        Self { url, prefix, keys: Arc::new(Mutex::new(RotatingKey::new(key))) }
    }

    /// The access of the cloud worker of a service.
    pub fn access(&self, namespace: &str, name: &str, uid: &str) -> ReportAccess {
        let key = self.keys.lock().current().clone();
        let token = key.worker_token(uid);
        ReportAccess {
            url: format!("{}/workers/{namespace}/{name}/$({POD_UID})/{token}", self.url),
            broker_password: key.broker_password(uid),
            prefix: self.prefix.clone(),
        }
    }

    /// Whether this is the token of the service with this uid.
    pub fn admits(&self, uid: &str, given: &str, now: Instant) -> bool {
        self.keys.lock().admits(given, now, |key| key.worker_token(uid))
    }

    /// Replaces the key. Returns whether it differs from the current one.
    pub fn replace_key(&self, key: TokenKey, now: Instant) -> bool {
        self.keys.lock().replace(key, now)
    }
}
