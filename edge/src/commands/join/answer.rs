//! Checks what the join server answered, and makes the settings of it. Pure.

use std::path::Path;

use jiff::Timestamp;
use neptune_join::{JoinAnswer, JoinToken};
use neptune_link::BrokerUrl;
use neptune_pinned_tls::pin_of;
use neptune_wire::{KeyPin, NodeName, TopicPrefix};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::parse_x509_certificate;

use super::{
    preflight::Places,
    step::{Failure, Reason, Step},
};

/// Difference of clocks above which the operator is warned, in seconds: a day.
const CLOCK_TOLERANCE: u64 = 24 * 60 * 60;

/// An answer that this node can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedAnswer {
    /// The answer, as the server sent it.
    pub answer: JoinAnswer,
    /// When the certificate expires.
    pub valid_until: Timestamp,
}

/// Checks that the certificate is for the key and the name of this node, that the authority is that
/// of the token, and that the agent can use the address of the broker.
///
/// # Errors
/// [`Reason::AnswerInvalid`].
pub fn check(
    answer: JoinAnswer,
    token: &JoinToken,
    key: &KeyPin,
) -> Result<CheckedAnswer, Failure> {
    let fail = |problem: String| {
        let remedy = "compare the versions of neptune-cloud and neptune-edge, and the --broker-url of the join \
                      server; then run the same line again";
        Failure::new(Step::Request, Reason::AnswerInvalid, format!("answer: {problem}"), remedy)
    };
    let certificate = CertificateDer::from_pem_slice(answer.certificate.as_bytes())
        .map_err(|error| fail(format!("its certificate is not PEM: {error}")))?;
    if pin_of(&certificate).as_ref() != Some(key) {
        return Err(fail("its certificate is not for the key of this node".to_owned()));
    }
    let (_, parsed) = parse_x509_certificate(&certificate)
        .map_err(|error| fail(format!("its certificate is not valid: {error}")))?;
    let name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    if name != Some(token.node.as_str()) {
        return Err(fail(format!("its certificate is for {name:?}, not for {}", token.node)));
    }
    let valid_until = Timestamp::from_second(parsed.validity().not_after.timestamp())
        .map_err(|error| fail(format!("its certificate has no valid end: {error}")))?;
    if !authorities(&answer.ca).contains(&token.authority) {
        return Err(fail("it does not have the authority of the token".to_owned()));
    }
    let broker: BrokerUrl = answer
        .broker_url
        .parse()
        .map_err(|error| fail(format!("its broker cannot be used: {error}")))?;
    if !broker.is_tls() || answer.broker_url.contains('@') {
        return Err(fail(format!("its broker {broker} is not mqtts://HOST:PORT")));
    }
    let prefix: Result<TopicPrefix, _> = answer.topic_prefix.parse();
    if prefix.is_err() || answer.topic_prefix.contains('\'') {
        return Err(fail(format!("its topic prefix {:?} cannot be used", answer.topic_prefix)));
    }
    Ok(CheckedAnswer { answer, valid_until })
}

/// Returns the pins of the certificates in a PEM text; none for a text that is no PEM.
#[must_use]
pub fn authorities(pem: &str) -> Vec<KeyPin> {
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes());
    certificates.filter_map(|it| it.ok().as_ref().and_then(pin_of)).collect()
}

/// Returns the settings of a join. `data_dir` is the one that the command names, which the agent
/// needs too.
#[must_use]
pub fn settings(
    answer: &JoinAnswer,
    node: &NodeName,
    places: &Places,
    key_file: &Path,
    data_dir: Option<&Path>,
) -> Vec<(&'static str, String)> {
    let path = |path: &Path| path.display().to_string();
    let mut settings = vec![
        ("NEPTUNE_NODE_NAME", node.to_string()),
        ("NEPTUNE_TRANSPORT", "mqtt".to_owned()),
        ("NEPTUNE_MQTT_URL", answer.broker_url.clone()),
        ("NEPTUNE_MQTT_CA_FILE", path(&places.authority)),
        ("NEPTUNE_MQTT_CERT_FILE", path(&places.certificate)),
        ("NEPTUNE_MQTT_KEY_FILE", path(key_file)),
        ("NEPTUNE_TOPIC_PREFIX", answer.topic_prefix.clone()),
    ];
    settings.extend(data_dir.map(|dir| ("NEPTUNE_DATA_DIR", path(dir))));
    settings
}

/// Returns what the operator should know: the warnings of the server, and a clock that is wrong.
/// `now` is in seconds since 1970.
#[must_use]
pub fn warnings(answer: &JoinAnswer, now: i64) -> Vec<String> {
    let mut warnings = answer.warnings.clone();
    let difference = now.abs_diff(answer.time);
    if difference > CLOCK_TOLERANCE {
        let days = difference / CLOCK_TOLERANCE;
        let direction = if now < answer.time { "behind" } else { "ahead of" };
        warnings.push(format!(
            "the clock of this node is {days} days {direction} the clock of the fleet; the node works, and logs and \
             windows of downloads have wrong times: set it with `timedatectl set-ntp true`"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_pinned_tls::TlsKey;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    /// A certificate with this name for this key, which the key signed itself.
    fn certificate(key: &TlsKey, name: &str) -> String {
        let pair = KeyPair::from_pem(key.to_pem()).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.self_signed(&pair).unwrap().pem()
    }

    fn answer(node: &TlsKey, authority: &TlsKey) -> JoinAnswer {
        JoinAnswer {
            certificate: certificate(node, "edge0"),
            ca: certificate(authority, "fleet"),
            broker_url: "mqtts://broker.example:30885".to_owned(),
            topic_prefix: "neptune".to_owned(),
            time: 1_000_000_000,
            warnings: vec!["no Node edge0 yet".to_owned()],
        }
    }

    #[test]
    fn answer_has_to_fit_key_name_and_authority() {
        let (node, authority, other) = (TlsKey::generate(), TlsKey::generate(), TlsKey::generate());
        let token = JoinToken::new("edge0".parse().unwrap(), authority.pin(), [1; 21]).unwrap();
        let good = answer(&node, &authority);
        let checked = check(good.clone(), &token, node.pin()).unwrap();
        assert_eq!(checked.valid_until.to_string(), "4096-01-01T00:00:00Z");
        for (broken, why) in [
            (JoinAnswer { certificate: String::new(), ..good.clone() }, "not PEM"),
            (JoinAnswer { certificate: certificate(&other, "edge0"), ..good.clone() }, "key"),
            (JoinAnswer { certificate: certificate(&node, "edge1"), ..good.clone() }, "edge1"),
            (JoinAnswer { ca: certificate(&other, "fleet"), ..good.clone() }, "authority"),
            (JoinAnswer { ca: "text".to_owned(), ..good.clone() }, "authority"),
            (JoinAnswer { broker_url: "mqtt://b".to_owned(), ..good.clone() }, "mqtts"),
            (JoinAnswer { broker_url: "mqtts://u@b".to_owned(), ..good.clone() }, "mqtts"),
            (JoinAnswer { broker_url: "b".to_owned(), ..good.clone() }, "cannot be used"),
            (JoinAnswer { topic_prefix: "a/#".to_owned(), ..good.clone() }, "prefix"),
            (JoinAnswer { topic_prefix: "a'b".to_owned(), ..good.clone() }, "prefix"),
        ] {
            let failure = check(broken, &token, node.pin()).unwrap_err();
            assert_eq!(failure.reason, Reason::AnswerInvalid);
            assert!(failure.problem.contains(why), "{why}: {}", failure.problem);
        }
    }

    #[test]
    fn clock_that_differs_by_days_is_reported_with_the_warnings_of_the_server() {
        let (node, authority) = (TlsKey::generate(), TlsKey::generate());
        let answer = answer(&node, &authority);
        assert_eq!(warnings(&answer, 1_000_000_000 + 86_400), ["no Node edge0 yet"]);
        let behind = warnings(&answer, 0);
        assert!(behind[1].contains("11574 days behind"), "{behind:?}");
        let ahead = warnings(&answer, 1_000_200_000);
        assert!(ahead[1].contains("2 days ahead of"), "{ahead:?}");
    }
}
