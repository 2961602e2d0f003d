//! Reads the framework table from the cache of its `ConfigMap`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use neptune_cloud_kinds::worker::frameworks::{CONFIG_MAP, Frameworks, TABLE_KEY};

use crate::cache::Caches;

impl Caches {
    /// The framework table; the built-in one if the `ConfigMap` does not exist.
    ///
    /// # Errors
    /// The `ConfigMap` is invalid; the message names it and the position.
    pub fn framework_table(&self) -> Result<Arc<Frameworks>, String> {
        let config_map = self.frameworks.state().into_iter().next();
        let mut parsed = self.parsed_frameworks.lock();
        if let Some((source, table)) = &*parsed
            && source.as_ref().map(Arc::as_ptr) == config_map.as_ref().map(Arc::as_ptr)
        {
            return table.clone();
        }
        let table = parse(config_map.as_deref());
        *parsed = Some((config_map, table.clone()));
        table
    }
}

/// The `ConfigMap` and the table in it.
pub type ParsedTable = (Option<Arc<ConfigMap>>, Result<Arc<Frameworks>, String>);

fn parse(config_map: Option<&ConfigMap>) -> Result<Arc<Frameworks>, String> {
    let Some(config_map) = config_map else {
        return Ok(Arc::new(Frameworks::default()));
    };
    let data = config_map.data.as_ref();
    let yaml = data.and_then(|data| data.get(TABLE_KEY)).map_or("", String::as_str);
    Frameworks::with(yaml).map(Arc::new).map_err(|error| {
        format!(
            "ConfigMap {CONFIG_MAP} in namespace {}: {TABLE_KEY}: {error}",
            config_map.namespace().unwrap_or_default()
        )
    })
}
