//! Builds the `AdmissionReview` for a webhook and decodes the response. Pure.

use serde_json::{Value, json};

use super::matching::Write;
use crate::request::Options;
use crate::resource::Resource;
use crate::status::ApiError;

/// The decision of a webhook.
#[derive(Debug, Default)]
pub struct Answer {
    pub warnings: Vec<String>,
    /// The error for the client, when the webhook denies the write.
    pub denied: Option<ApiError>,
}

/// The review of a write. A client that impersonates nobody is the administrator.
pub fn request(write: &Write<'_>, options: &Options, uid: &str) -> Value {
    let reviewed = if write.object.is_null() { write.old } else { write.object };
    let user = match options.user.as_str() {
        "" => {
            json!({"username": "devcluster", "groups": ["system:masters", "system:authenticated"]})
        }
        name => json!({"username": name, "groups": ["system:authenticated"]}),
    };
    let (kind, resource) = (kind(write.resource), resource(write.resource));
    let mut request = json!({
        "uid": uid,
        "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
        "name": crate::object::name(reviewed),
        "operation": write.operation,
        "userInfo": user,
        "object": write.object, "oldObject": write.old,
        "dryRun": matches!(options.dry_run(), Ok(true)),
        "options": call_options(write.operation, options),
    });
    if write.resource.namespaced {
        request["namespace"] = write.namespace.into();
    }
    if !write.subresource.is_empty() {
        request["subResource"] = write.subresource.into();
        request["requestSubResource"] = write.subresource.into();
    }
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request})
}

fn kind(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": resource.kind})
}

fn resource(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": resource.version, "resource": resource.plural})
}

fn call_options(operation: &str, options: &Options) -> Value {
    let kind = match operation {
        "CREATE" => "CreateOptions",
        "DELETE" => "DeleteOptions",
        _ => "UpdateOptions",
    };
    let mut shown = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    if operation != "DELETE" {
        shown["fieldManager"] = options.field_manager().into();
    }
    if matches!(options.dry_run(), Ok(true)) {
        shown["dryRun"] = json!(["All"]);
    }
    shown
}

/// Decodes a webhook's response.
///
/// # Errors
/// The defect that an API server reports for an invalid response; the call counts as failed.
pub fn answer(name: &str, uid: &str, body: &Value) -> Result<Answer, String> {
    let response = &body["response"];
    if !response.is_object() {
        return Err("webhook response was absent".to_owned());
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if response["uid"] != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", text(&response["uid"])));
    }
    if body["apiVersion"] != "admission.k8s.io/v1" || body["kind"] != "AdmissionReview" {
        return Err(format!(
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {}, Kind={}",
            text(&body["apiVersion"]),
            text(&body["kind"])
        ));
    }
    let Some(allowed) = response["allowed"].as_bool() else {
        return Err("response.allowed is not a boolean".to_owned());
    };
    let warnings = crate::object::strings(&response["warnings"]);
    let warnings = warnings.into_iter().map(str::to_owned).collect();
    let denied = (!allowed).then(|| denial(name, &response["status"]));
    Ok(Answer { warnings, denied })
}

/// The error for the client: the webhook's Status, with the name of the webhook in front of its
/// message.
fn denial(name: &str, status: &Value) -> ApiError {
    let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
    let by = format!("admission webhook {name:?} denied the request");
    let message = match (text("message"), text("reason")) {
        (message, _) if !message.is_empty() => format!("{by}: {message}"),
        (_, reason) if !reason.is_empty() => format!("{by}: {reason}"),
        _ => format!("{by} without explanation"),
    };
    let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok());
    let code = code.filter(|code| (400..600).contains(code)).unwrap_or(400);
    let details = status["details"].as_object().cloned().unwrap_or_default();
    ApiError { code, reason: text("reason").into(), message, details }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn review(response: &Value) -> Value {
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
    }

    #[test]
    fn response_with_wrong_uid_or_kind_is_an_error() {
        let table = [
            (json!({}), "webhook response was absent"),
            (
                review(&json!({"uid": "b", "allowed": true})),
                r#"expected response.uid="a", got "b""#,
            ),
            (review(&json!({"uid": "a"})), "response.allowed"),
            (
                json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1", "response": {"uid": "a", "allowed": true}}),
                "got admission.k8s.io/v1beta1",
            ),
        ];
        for (body, expected) in table {
            let error = answer("w.x.y", "a", &body).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn denial_names_webhook_and_has_error_code() {
        let denied = |status: Value| {
            let body = review(&json!({"uid": "a", "allowed": false, "status": status}));
            let denied = answer("w.x.y", "a", &body).unwrap().denied.unwrap();
            (denied.code, denied.message)
        };
        let by = "admission webhook \"w.x.y\" denied the request";
        let table = [
            (json!({"message": "no", "code": 403}), (403, format!("{by}: no"))),
            (json!({"reason": "Forbidden", "code": 200}), (400, format!("{by}: Forbidden"))),
            (Value::Null, (400, format!("{by} without explanation"))),
        ];
        for (status, expected) in table {
            assert_eq!(denied(status), expected);
        }
    }
}
