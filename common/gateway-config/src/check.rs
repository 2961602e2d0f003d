//! Parses and checks a configuration as a whole.

use http::{HeaderName, HeaderValue, uri::Authority};

use crate::{CaptureConfig, Config, ConfigError, Protocol, UrlProblem, check_clients};

impl Config {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let config: Self = serde_json::from_slice(text)?;
        config.hard_example.rule(config.protocol)?;
        config.hard_example.settings(config.protocol)?;
        if !is_host_and_port(&config.edge.address) {
            return Err(ConfigError::EdgeAddress(config.edge.address));
        }
        if let Some(id) = config.id.as_ref().filter(|id| !is_id(id)) {
            return Err(ConfigError::Id(id.clone()));
        }
        config.check_cloud()?;
        config.check_grpc()?;
        check_clients(&config.clients)?;
        config.pins()?;
        config.capture.iter().try_for_each(CaptureConfig::check)?;
        if config.limits.max_body_bytes == 0 {
            return Err(ConfigError::Limit("maxBodyBytes"));
        }
        if config.limits.max_in_flight == 0 {
            return Err(ConfigError::Limit("maxInFlight"));
        }
        let least = config.limits.max_body_bytes;
        match config.limits.max_answer_bytes {
            Some(bytes) if bytes < least => Err(ConfigError::AnswerBytes { least, bytes }),
            _ => Ok(config),
        }
    }

    fn check_cloud(&self) -> Result<(), ConfigError> {
        let Some(cloud) = &self.cloud else { return Ok(()) };
        let plain = cloud.allow_plain_http;
        let problem =
            |field, url: &str, why| ConfigError::CloudUrl { field, url: url.to_owned(), why };
        if let Some(why) = UrlProblem::of_rest(&cloud.url, plain) {
            return Err(problem("cloud.url", &cloud.url, why));
        }
        let Some(url) = &cloud.grpc_url else { return Ok(()) };
        UrlProblem::of_grpc(url, plain)
            .map_or(Ok(()), |why| Err(problem("cloud.grpcUrl", url, why)))
    }

    /// Checks that the fields for gRPC are all given, or none of them.
    fn check_grpc(&self) -> Result<(), ConfigError> {
        const LISTEN: &str = "grpcListen";
        const EDGE: &str = "edge.grpcAddress";
        const CLOUD: &str = "cloud.grpcUrl";
        let cloud = self.cloud.as_ref().map(|cloud| cloud.grpc_url.is_some());
        let edge = self.edge.grpc_address.as_deref();
        let given = [
            (LISTEN, self.grpc_listen.is_some()),
            (EDGE, edge.is_some()),
            (CLOUD, cloud == Some(true)),
        ];
        let Some((field, _)) = given.into_iter().find(|(_, is_given)| *is_given) else {
            return Ok(());
        };
        if self.protocol != Protocol::Oip {
            return Err(ConfigError::GrpcProtocol { field, protocol: self.protocol });
        }
        let incomplete = |needed| Err(ConfigError::GrpcIncomplete { field, needed });
        match (self.grpc_listen, edge, cloud) {
            (None, ..) => incomplete(LISTEN),
            (_, None, _) => incomplete(EDGE),
            (.., Some(false)) => incomplete(CLOUD),
            (_, Some(address), _) if !is_host_and_port(address) => {
                Err(ConfigError::EdgeGrpcAddress(address.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// The headers that keep a request at the edge.
    ///
    /// # Errors
    /// The one that is not `name: value`.
    pub fn pins(&self) -> Result<Vec<(HeaderName, HeaderValue)>, ConfigError> {
        let parse = |text: &String| {
            let (name, value) = text.split_once(':')?;
            Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
        };
        let headers = self.never_upload.headers.iter();
        headers.map(|text| parse(text).ok_or_else(|| ConfigError::Header(text.clone()))).collect()
    }
}

fn is_id(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=64).contains(&id.len()) && id.bytes().all(is_plain)
}

fn is_host_and_port(address: &str) -> bool {
    let authority = address.parse::<Authority>();
    authority.is_ok_and(|authority| authority.port_u16().is_some())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use neptune_cascade::{Share, policy};
    use serde_json::{Value, json};

    use super::*;

    fn valid() -> Value {
        json!({
            "service": "digits", "protocol": "oip",
            "edge": {"address": "127.0.0.1:9001"},
            "cloud": {"url": "https://models.example"},
            "hardExample": {"goal": {"uploadRatio": 0.2}},
        })
    }

    fn parse(config: &Value) -> Result<Config, ConfigError> {
        Config::parse(config.to_string().as_bytes())
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let config = parse(&valid()).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!((config.limits.max_body_bytes, config.limits.max_in_flight), (33_554_432, 256));
        assert_eq!(config.edge_timeout(), Duration::from_secs(10));
        assert_eq!(config.cloud_first_byte(), Duration::from_secs(2));
        assert_eq!(config.cloud_total(), Duration::from_secs(5));
        assert_eq!(config.timeouts.cloud_connect, Duration::from_secs(1));
        let settings = config.hard_example.settings(config.protocol).unwrap();
        assert_eq!(settings.goal, policy::Goal::UploadRatio(Share::percent(20)));
        assert_eq!(settings.max_ratio, Share::percent(30));
        assert_eq!(settings.shadow_ratio, Share::percent(2));
    }

    #[test]
    fn free_texts_are_not_compared() {
        let mut config = valid();
        config["protocol"] = json!("openai");
        let shadows = |config: &Value| {
            let config = parse(config).unwrap();
            config.hard_example.settings(config.protocol).unwrap().shadow_ratio
        };
        assert_eq!(shadows(&config), Share::ZERO);
        config["hardExample"]["labels"] = json!(["yes", "no"]);
        assert_eq!(shadows(&config), Share::percent(2));
        config["hardExample"] = json!({"goal": {"uploadRatio": 0.2}, "shadowRatio": 0.5});
        assert_eq!(shadows(&config), Share::percent(50), "as asked for");
        config["hardExample"] = json!({"goal": {"agreement": 0.9}});
        let refused =
            parse(&config).and_then(|config| config.hard_example.settings(config.protocol));
        assert!(refused.unwrap_err().to_string().contains("give labels"));
    }

    #[test]
    fn durations_are_texts_with_units() {
        let mut config = valid();
        config["timeouts"] = json!({"edge": "500ms", "cloudTotal": "1m 30s"});
        let config = parse(&config).unwrap();
        assert_eq!(config.edge_timeout(), Duration::from_millis(500));
        assert_eq!(config.cloud_total(), Duration::from_secs(90));
    }

    #[test]
    fn sections_are_written_without_their_defaults() {
        let mut config = valid();
        config["timeouts"] = json!({"edge": "500ms"});
        config["limits"] = json!({"maxInFlight": 3});
        config["capture"] = json!({"directory": "/hard", "share": 0.5});
        let written = serde_json::to_value(parse(&config).unwrap()).unwrap();
        for section in ["timeouts", "limits", "capture", "hardExample"] {
            assert_eq!(written[section], config[section], "{section}");
        }
        let written = serde_json::to_value(parse(&valid()).unwrap()).unwrap();
        for section in ["timeouts", "limits", "capture"] {
            assert_eq!(written.get(section), None, "{section}");
        }
    }

    #[test]
    fn boxes_need_no_kind_and_a_choice_two_labels() {
        for kind in [json!(null), json!("boxes")] {
            let mut config = valid();
            config["hardExample"] = json!({"algorithm": "Threshold", "kind": kind});
            let config = parse(&config).unwrap();
            assert!(config.hard_example.rule(config.protocol).is_ok(), "{kind}");
        }
        for (labels, is_valid) in [(json!(["yes"]), false), (json!(["yes", "no"]), true)] {
            let mut config = valid();
            config["protocol"] = json!("openai");
            config["hardExample"] = json!({"tokens": "choice", "labels": labels});
            let result = parse(&config).and_then(|it| it.hard_example.rule(it.protocol));
            assert_eq!(result.is_ok(), is_valid, "{labels}");
        }
    }

    #[test]
    fn cap_of_uploads_may_be_the_goal() {
        let mut config = valid();
        config["hardExample"] = json!({"goal": {"uploadRatio": 0.2}, "maxUploadRatio": 0.2});
        let config = parse(&config).unwrap();
        assert!(config.hard_example.settings(config.protocol).is_ok());
    }

    #[test]
    fn least_size_of_captured_records_is_valid() {
        let mut config = valid();
        config["capture"] = json!({"directory": "/hard", "maxBytes": 1_048_576});
        assert_eq!(parse(&config).unwrap().capture.unwrap().max_bytes, 1_048_576);
    }

    #[test]
    fn each_mistake_is_named() {
        for (pointer, value, message) in [
            ("/servce", json!(1), "unknown field `servce`"),
            ("/edge/address", json!("127.0.0.1"), "edge.address \"127.0.0.1\" is not host:port"),
            ("/cloud/url", json!("http://models.example"), "use https, or permit it with"),
            ("/cloud/url", json!("https://a:b@models.example"), "belong into tokenFile"),
            ("/hardExample/goal/agreement", json!(0.9), "give uploadRatio or agreement, not both"),
            ("/hardExample/maxUploadRatio", json!(0.1), "0.1 is below uploadRatio 0.2"),
            ("/hardExample/threshold", json!(2), "hardExample.threshold is 2; it has to be from 0"),
            (
                "/hardExample/algorithm",
                json!("LogProb"),
                "LogProb does not read the answers of oip; use MaxProbability, Margin or CrossEntropy",
            ),
            ("/hardExample/kind", json!("boxes"), "MaxProbability does not read Boxes"),
            (
                "/hardExample",
                json!({"algorithm": "Threshold", "kind": "logits"}),
                "Threshold does not read Probabilities",
            ),
            ("/timeouts", json!({"edge": "0s"}), "\"0s\" is no duration"),
            ("/grpcListen", json!("127.0.0.1:0"), "grpcListen needs edge.grpcAddress; add edge"),
            (
                "/edge/grpcAddress",
                json!("a:1"),
                "edge.grpcAddress needs grpcListen; add grpcListen",
            ),
            ("/cloud/grpcUrl", json!("https://a:1"), "cloud.grpcUrl needs grpcListen; add grpc"),
            ("/cloud/grpcUrl", json!("https://a"), "cloud.grpcUrl \"https://a\": it has no port"),
            ("/cloud/grpcUrl", json!("https://a:1/x"), "gRPC has no base path"),
            ("/cloud/grpcUrl", json!("http://a:1"), "use https, or permit it with allowPlainHttp"),
            ("/limits", json!({"maxInFlight": 0}), "limits.maxInFlight has to be at least 1"),
            (
                "/limits",
                json!({"maxBodyBytes": 2, "maxAnswerBytes": 1}),
                "limits.maxAnswerBytes is 1; it has to be at least maxBodyBytes, 2",
            ),
            ("/id", json!("a,b"), "id \"a,b\" has to be 1 to 64 letters, digits and '-'"),
            ("/capture", json!({"directory": "hard"}), "\"hard\" is not an absolute path"),
            (
                "/capture",
                json!({"directory": "/hard", "share": 1.5}),
                "capture.share is 1.5; it has to be from 0 to 1",
            ),
            (
                "/capture",
                json!({"directory": "/hard", "maxBytes": 10}),
                "capture.maxBytes is 10; it has to be at least 1048576",
            ),
            (
                "/capture",
                json!({"directory": "/hard", "format": "csv"}),
                "unknown variant `csv`, expected `jsonl`",
            ),
            (
                "/clients",
                json!([{"name": "a", "keySha256": ["x"]}]),
                "client \"a\": keySha256 \"x\" is not 64 lower case hexadecimal digits; use the line",
            ),
            ("/clients", json!([{"name": "a", "weight": 2}]), "unknown field `weight`"),
            ("/tls", json!({"certFile": "/a"}), "missing field `keyFile`"),
            ("/neverUpload", json!({"headers": ["edge"]}), "\"edge\" is not \"name: value\""),
        ] {
            let mut config = valid();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            config.pointer_mut(parent).unwrap()[key] = value;
            let error = parse(&config).unwrap_err().to_string();
            assert!(error.contains(message), "{pointer}: {error}");
        }
    }

    #[test]
    fn unknown_field_names_the_version_of_the_gateway() {
        let newer = concat!(
            "; neptune-gateway ",
            env!("CARGO_PKG_VERSION"),
            " does not know it: correct it, or use an image of the controller's version \
             (--gateway-image)"
        );
        for (pointer, value, is_newer) in [
            ("/cloud/routes", json!({}), true),
            ("/hardExample/algorithm", json!("Oracle"), true),
            ("/edge/address", json!(1), false),
            ("/edge/address", json!("127.0.0.1"), false),
        ] {
            let mut config = valid();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            config.pointer_mut(parent).unwrap()[key] = value;
            let error = parse(&config).unwrap_err().to_string();
            assert_eq!(error.ends_with(newer), is_newer, "{pointer}: {error}");
        }
    }

    #[test]
    fn grpc_needs_all_of_its_fields_and_the_protocol() {
        let mut config = valid();
        config["grpcListen"] = json!("127.0.0.1:0");
        config["edge"]["grpcAddress"] = json!("127.0.0.1:8001");
        let error = parse(&config).unwrap_err().to_string();
        assert_eq!(
            error,
            "grpcListen needs cloud.grpcUrl; add cloud.grpcUrl, or remove grpcListen"
        );
        config["cloud"]["grpcUrl"] = json!("https://models.example:8001/");
        assert!(parse(&config).is_ok());
        config["edge"]["grpcAddress"] = json!("127.0.0.1");
        let error = parse(&config).unwrap_err().to_string();
        assert_eq!(error, "edge.grpcAddress \"127.0.0.1\" is not host:port");
        config["protocol"] = json!("tfserving");
        let error = parse(&config).unwrap_err().to_string();
        assert_eq!(error, "grpcListen needs protocol oip; remove it, or change protocol tfserving");
    }

    #[test]
    fn rules_that_do_not_read_the_answer_are_thresholds() {
        for (algorithm, ratio, threshold) in
            [("Random", Some(0.3), 0.3), ("CloudOnly", None, 1.0), ("EdgeOnly", None, 0.0)]
        {
            let mut config = valid();
            config["hardExample"] = json!({"algorithm": algorithm, "goal": {"uploadRatio": ratio}});
            let config = parse(&config).unwrap();
            let settings = config.hard_example.settings(config.protocol).unwrap();
            assert_eq!(settings.goal, policy::Goal::Threshold);
            assert!((settings.threshold - threshold).abs() < 1e-9);
        }
    }
}
