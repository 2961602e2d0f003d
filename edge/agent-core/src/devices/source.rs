//! Parses what the operator of the node offers: `--allow-device RESOURCE=SOURCE[+SOURCE...]`.

use std::{fmt, str::FromStr};

use neptune_wire::{DeviceResourceError, check_device_resource};

/// Device nodes that give a program the memory or the ports of the machine.
const REFUSED_NODES: [&str; 3] = ["/dev/mem", "/dev/kmem", "/dev/port"];

/// One `--allow-device`: a unit of a resource, or with a pattern one unit for each match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOffer {
    pub resource: String,
    /// What makes one unit together. A pattern is alone.
    pub sources: Vec<DeviceSource>,
}

/// A device as the operator of the node names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSource {
    /// A path below `/dev`, and the path in the container if it is another one.
    Node { path: String, target: Option<String> },
    /// The CDI name of a device: `vendor.example/class=name`.
    Cdi(String),
    /// The index or UUID of a GPU for the engine's driver `nvidia`.
    Nvidia(String),
    /// A runtime of the engine that passes on a GPU, or all of them without an ID.
    Runtime { name: String, id: Option<String> },
}

/// Why a value of `--allow-device` is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error("{0:?} is not RESOURCE=SOURCE")]
    NoResource(String),
    #[error("resource {0:?} is not domain/name, such as neptune.io/camera")]
    Resource(String),
    #[error("resource {0:?} is in a domain of Kubernetes; use a domain of your own")]
    KubernetesResource(String),
    #[error("source {0:?} is no path below /dev, no CDI name, no nvidia:ID and no runtime:NAME")]
    Unknown(String),
    #[error("path {0:?} is not a plain path below /dev")]
    OutsideDev(String),
    #[error("path {0:?} in the container is not absolute and plain")]
    Target(String),
    #[error("{0} gives a program the whole machine")]
    WholeMachine(String),
    #[error("{0:?} has a pattern beside other sources; give each unit a flag of its own")]
    PatternInUnit(String),
    #[error("{0:?} names more than one runtime")]
    Runtimes(String),
}

impl DeviceOffer {
    /// The pattern that this offer consists of, if it is one.
    pub fn pattern(&self) -> Option<&str> {
        match &self.sources[..] {
            [DeviceSource::Node { path, .. }] if is_pattern(path) => Some(path),
            _ => None,
        }
    }

    /// The paths and patterns whose presence has to be looked up.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().filter_map(|source| match source {
            DeviceSource::Node { path, .. } => Some(path.as_str()),
            _ => None,
        })
    }
}

impl FromStr for DeviceOffer {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let parts = text.split_once('=').filter(|(_, sources)| !sources.is_empty());
        let (resource, sources) = parts.ok_or_else(|| SourceError::NoResource(text.to_owned()))?;
        check_device_resource(resource).map_err(|error| match error {
            DeviceResourceError::Malformed => SourceError::Resource(resource.to_owned()),
            DeviceResourceError::Reserved => SourceError::KubernetesResource(resource.to_owned()),
        })?;
        let sources: Vec<DeviceSource> =
            split(sources).iter().map(|source| source.parse()).collect::<Result<_, _>>()?;
        let has_pattern =
            |it: &DeviceSource| matches!(it, DeviceSource::Node { path, .. } if is_pattern(path));
        if sources.len() > 1 && sources.iter().any(has_pattern) {
            return Err(SourceError::PatternInUnit(text.to_owned()));
        }
        let runtimes = sources.iter().filter(|it| matches!(it, DeviceSource::Runtime { .. }));
        if runtimes.count() > 1 {
            return Err(SourceError::Runtimes(text.to_owned()));
        }
        Ok(Self { resource: resource.to_owned(), sources })
    }
}

impl FromStr for DeviceSource {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let unknown = || SourceError::Unknown(text.to_owned());
        if text.starts_with('/') {
            // The name of a link may have colons, as below /dev/v4l/by-path.
            let (path, target) = match text.rfind(":/") {
                Some(at) => (&text[..at], Some(&text[at + 1..])),
                None => (text, None),
            };
            check_path(path)?;
            if let Some(target) = target.filter(|target| !is_plain(target)) {
                return Err(SourceError::Target(target.to_owned()));
            }
            return Ok(Self::Node { path: path.to_owned(), target: target.map(str::to_owned) });
        }
        let is_word = |text: &str| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
            !text.is_empty() && text.chars().all(is_part)
        };
        if let Some(id) = text.strip_prefix("nvidia:") {
            return is_word(id).then(|| Self::Nvidia(id.to_owned())).ok_or_else(unknown);
        }
        if let Some(runtime) = text.strip_prefix("runtime:") {
            let (name, id) = match runtime.split_once('=') {
                Some((name, id)) => (name, Some(id)),
                None => (runtime, None),
            };
            let is_valid = is_word(name) && id.is_none_or(is_word);
            let id = id.map(str::to_owned);
            return is_valid
                .then(|| Self::Runtime { name: name.to_owned(), id })
                .ok_or_else(unknown);
        }
        let is_cdi = || {
            let (kind, name) = text.split_once('=')?;
            let (vendor, class) = kind.split_once('/')?;
            [vendor, class, name].into_iter().all(is_word).then_some(())
        };
        is_cdi().map(|()| Self::Cdi(text.to_owned())).ok_or_else(unknown)
    }
}

impl fmt::Display for DeviceSource {
    /// Writes the source without the path in the container.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { path, .. } => f.write_str(path),
            Self::Cdi(name) => f.write_str(name),
            Self::Nvidia(id) => write!(f, "nvidia:{id}"),
            Self::Runtime { name, id: None } => write!(f, "runtime:{name}"),
            Self::Runtime { name, id: Some(id) } => write!(f, "runtime:{name}={id}"),
        }
    }
}

/// Splits the sources of a unit. A `+` in a file name does not separate them.
fn split(sources: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for part in sources.split('+') {
        let is_cdi = || part.split_once('=').is_some_and(|(kind, _)| kind.contains('/'));
        let is_source =
            ["/", "nvidia:", "runtime:"].iter().any(|it| part.starts_with(it)) || is_cdi();
        match parts.last_mut() {
            Some(last) if !is_source => {
                last.push('+');
                last.push_str(part);
            }
            _ => parts.push(part.to_owned()),
        }
    }
    parts
}

fn check_path(path: &str) -> Result<(), SourceError> {
    let is_below = path.strip_prefix("/dev/").is_some_and(|name| !name.is_empty());
    if !is_below || !is_plain(path) {
        return Err(SourceError::OutsideDev(path.to_owned()));
    }
    check_node(path)
}

/// Refuses the device nodes that give a program the whole machine.
///
/// # Errors
/// It is one of them.
pub fn check_node(path: &str) -> Result<(), SourceError> {
    if REFUSED_NODES.contains(&path) {
        return Err(SourceError::WholeMachine(path.to_owned()));
    }
    Ok(())
}

fn is_plain(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    rest.split('/').all(|part| !["", ".", ".."].contains(&part)) && !path.contains('\0')
}

/// Whether a path has a pattern: `*` for any characters of a name, `?` for one.
pub fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?'])
}

/// Whether a pattern matches a whole name.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut seen) = (0, 0);
    // Where the last `*` is, and what it has to cover if the rest does not match.
    let mut star = None;
    while seen < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(c) if *c == '?' || *c == name[seen] => {
                at += 1;
                seen += 1;
            }
            _ => {
                let Some((star_at, covered)) = star else { return false };
                star = Some((star_at, covered + 1));
                at = star_at + 1;
                seen = covered + 1;
            }
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn node(path: &str, target: Option<&str>) -> DeviceSource {
        DeviceSource::Node { path: path.to_owned(), target: target.map(str::to_owned) }
    }

    #[test]
    fn each_form_of_a_source_is_parsed() {
        let runtime = |id: Option<&str>| DeviceSource::Runtime {
            name: "nvidia".to_owned(),
            id: id.map(str::to_owned),
        };
        let by_path = "/dev/v4l/by-path/pci-0000:00:14.0-usb-0:2:1.0-video-index0";
        for (text, expected) in [
            ("/dev/video0", node("/dev/video0", None)),
            (by_path, node(by_path, None)),
            (&format!("{by_path}:/dev/video0"), node(by_path, Some("/dev/video0"))),
            ("/dev/v4l/by-id/*-index0", node("/dev/v4l/by-id/*-index0", None)),
            ("nvidia.com/gpu=0", DeviceSource::Cdi("nvidia.com/gpu=0".to_owned())),
            ("nvidia.com/gpu=0:1", DeviceSource::Cdi("nvidia.com/gpu=0:1".to_owned())),
            ("nvidia:0:1", DeviceSource::Nvidia("0:1".to_owned())),
            ("nvidia:GPU-1f2e", DeviceSource::Nvidia("GPU-1f2e".to_owned())),
            ("runtime:nvidia", runtime(None)),
            ("runtime:nvidia=0", runtime(Some("0"))),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn unit_has_several_sources_and_names_may_have_a_plus() {
        let offer: DeviceOffer =
            "neptune.io/camera=/dev/v4l/by-id/a+b-index0:/dev/video0+/dev/video1".parse().unwrap();
        assert_eq!(offer.resource, "neptune.io/camera");
        let expected =
            [node("/dev/v4l/by-id/a+b-index0", Some("/dev/video0")), node("/dev/video1", None)];
        assert_eq!(offer.sources, expected);
        let amd: DeviceOffer = "amd.com/gpu=/dev/kfd+/dev/dri/renderD128".parse().unwrap();
        assert_eq!(amd.paths().collect::<Vec<_>>(), ["/dev/kfd", "/dev/dri/renderD128"]);
        let gpu: DeviceOffer = "nvidia.com/gpu=nvidia.com/gpu=0+nvidia.com/gpu=1".parse().unwrap();
        assert_eq!((gpu.sources.len(), gpu.pattern()), (2, None));
        let cameras: DeviceOffer = "a.b/c=/dev/video*".parse().unwrap();
        assert_eq!(cameras.pattern(), Some("/dev/video*"));
        let camera: DeviceOffer = "a.b/c=/dev/video0".parse().unwrap();
        assert_eq!(camera.pattern(), None);
    }

    #[test]
    fn invalid_offer_is_refused_with_its_part() {
        for (text, part) in [
            ("/dev/video0", "RESOURCE=SOURCE"),
            ("a.b/c", "RESOURCE=SOURCE"),
            ("a.b/c=", "RESOURCE=SOURCE"),
            ("camera=/dev/video0", "domain/name"),
            ("A.b/c=/dev/video0", "domain/name"),
            ("a.b/-c=/dev/video0", "domain/name"),
            ("kubernetes.io/c=/dev/video0", "domain of Kubernetes"),
            ("a.kubernetes.io/c=/dev/video0", "domain of Kubernetes"),
            ("a.b/c=/etc/passwd", "below /dev"),
            ("a.b/c=/dev", "below /dev"),
            ("a.b/c=/dev/../etc/passwd", "below /dev"),
            ("a.b/c=/dev/mem", "whole machine"),
            ("a.b/c=/dev/kmem", "whole machine"),
            ("a.b/c=/dev/null+/dev/port", "whole machine"),
            ("a.b/c=/dev/video0:/../x", "in the container"),
            ("a.b/c=/dev/video*+/dev/null", "flag of its own"),
            ("a.b/c=runtime:a+runtime:b", "more than one runtime"),
            ("a.b/c=video0", "no CDI name"),
            ("a.b/c=nvidia:", "no CDI name"),
            ("a.b/c=nvidia.com/gpu=", "no CDI name"),
        ] {
            let error = text.parse::<DeviceOffer>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn pattern_matches_whole_names() {
        for (pattern, name, expected) in [
            ("video*", "video0", true),
            ("video*", "video", true),
            ("video?", "video10", false),
            ("usb-*-index0", "usb-a-index1-index0", true),
            ("usb-*-index0", "usb-a-index1", false),
            ("*", "", true),
            ("a", "ab", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
