//! Reads the framework table from the cache of its `ConfigMap`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;

use crate::{
    cache::Caches,
    worker::frameworks::{CONFIG_MAP, Frameworks, TABLE_KEY},
};

impl Caches {
    /// The framework table; the built-in one if the `ConfigMap` does not exist.
    ///
    /// # Errors
    /// The `ConfigMap` is invalid; the message names it and the position.
    pub fn framework_table(&self) -> Result<Arc<Frameworks>, String> {
        let Some(config_map) = self.frameworks.state().into_iter().next() else {
            return Ok(Arc::new(Frameworks::default()));
        };
        let ConfigMap { data, .. } = &*config_map;
        let yaml = data.as_ref().and_then(|data| data.get(TABLE_KEY)).map_or("", String::as_str);
        Frameworks::with(yaml).map(Arc::new).map_err(|error| {
            format!(
                "ConfigMap {CONFIG_MAP} in namespace {}: {TABLE_KEY}: {error}",
                config_map.namespace().unwrap_or_default()
            )
        })
    }
}
