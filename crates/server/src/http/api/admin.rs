//! `/admin/*`: the routes of operators, most of them aliases of other routes.

use utoipa::openapi::path::PathItem;
use utoipa_axum::router::UtoipaMethodRouter;

use crate::http::state::Api;

/// Returns the same routes below `/admin`, where the admin key is required. The handler is
/// shared, its description is a second one.
pub fn alias((schemas, mut paths, handlers): UtoipaMethodRouter<Api>) -> UtoipaMethodRouter<Api> {
    paths.paths = paths.paths.into_iter().map(|(path, item)| (below_admin(&path), described_again(item))).collect();
    (schemas, paths, handlers)
}

fn below_admin(path: &str) -> String {
    path.replacen("/api/v1/", "/api/v1/admin/", 1)
}

fn described_again(mut item: PathItem) -> PathItem {
    let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
    for operation in operations.into_iter().flatten() {
        operation.tags = Some(vec!["admin".to_owned()]);
        // `list_quotas` becomes `list_admin_quotas`.
        operation.operation_id = operation.operation_id.take().map(|id| id.replacen('_', "_admin_", 1));
    }
    item
}
