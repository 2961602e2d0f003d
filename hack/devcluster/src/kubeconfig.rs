//! Writes the kubeconfig for the clients of a devcluster.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::json;

/// A kubeconfig with one context, as JSON, which is valid YAML.
fn text(address: SocketAddr, context: &str) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": context, "preferences": {},
        "clusters": [{"name": context, "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": context, "user": {}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context, "namespace": "default"}}],
    });
    format!("{config:#}\n")
}

/// Writes the kubeconfig. The file is replaced atomically, so readers never see a part of it.
///
/// # Errors
/// An I/O error, or a path without file name.
pub fn write(path: &Path, address: SocketAddr, context: &str) -> io::Result<()> {
    let directory =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?;
    let fresh = directory.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    fs::write(&fresh, text(address, context))?;
    fs::rename(&fresh, path)
}
