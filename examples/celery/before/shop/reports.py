from shop.app import app


@app.task
def report():
    return "sales of yesterday"


@app.task(ignore_result=True)
def sync_stock():
    print("stock is up to date")
