//! Writes the file with the address to which the proxy of a model server passes requests.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use neptune_agent_core::model_server::container::PROXY_TARGET;
use neptune_transfer::durable::{self, Access, Survives};

/// Makes the proxy with this directory pass requests to this port of loopback. The user of the
/// proxy can read the file. Survives a kill: each start of the agent writes it again. Blocking.
pub fn write(dir: &Path, port: u16) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(0o755))?;
    let content = format!("127.0.0.1:{port}\n");
    let path = dir.join(PROXY_TARGET);
    durable::replace(&path, content.as_bytes(), Access::mode(0o644), Survives::Kill)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn file_has_the_newest_address() {
        let dir = tempfile::tempdir().unwrap();
        let proxy = dir.path().join("uid/proxy");
        for port in [13_502, 13_503] {
            write(&proxy, port).unwrap();
            let text = fs::read_to_string(proxy.join(PROXY_TARGET)).unwrap();
            assert_eq!(text, format!("127.0.0.1:{port}\n"));
        }
        assert_eq!(fs::read_dir(&proxy).unwrap().count(), 1);
        let mode = fs::metadata(proxy.join(PROXY_TARGET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
    }
}
