//! Reads the text of a response.

use reqwest::Response;

/// Returns the body of a response as text. It is cut off after `limit` bytes.
///
/// # Errors
/// The connection failed.
pub async fn text(mut response: Response, limit: usize) -> Result<String, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        body.extend_from_slice(&chunk[..chunk.len().min(limit - body.len())]);
        if body.len() == limit {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}
